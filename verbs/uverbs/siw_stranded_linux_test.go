package uverbs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestIWARPQPsAreMovedByTheirConnectionManager(t *testing.T) {
	const (
		reset, init, rtr, rts = verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS
		sqd, failed           = verbs.QPStateSQD, verbs.QPStateErr
	)
	for _, c := range []struct {
		from, to verbs.QPState
		want     error
	}{
		{reset, init, nil}, {init, init, nil}, {init, failed, nil}, {rts, failed, nil}, {failed, failed, nil}, {rts, rts, nil},
		{reset, failed, verbs.ErrInvalid},
		{init, rtr, verbs.ErrUnsupported}, {rtr, rts, verbs.ErrUnsupported}, {rts, sqd, verbs.ErrUnsupported},
		{rts, reset, verbs.ErrUnsupported}, {failed, reset, verbs.ErrUnsupported}, {failed, init, verbs.ErrUnsupported},
	} {
		require.ErrorIs(t, iwarpTransition(c.from, c.to), c.want, "%v to %v", c.from, c.to)
	}
}

func TestDoorbellThatSiwRefusesIsNoErrorOfThePost(t *testing.T) {
	stuck, err := siwBell(unix.ENOTCONN)
	require.NoError(t, err)
	require.False(t, stuck)
	stuck, err = siwBell(unix.EINVAL)
	require.NoError(t, err)
	require.True(t, stuck)
	stuck, err = siwBell(unix.EIO)
	require.ErrorIs(t, err, unix.EIO)
	require.False(t, stuck)
}

// cqWithQP is a CQ over memory of the test, with a QP that reports to it.
func cqWithQP(t *testing.T) (*cq, *siwCQ, *qp) {
	t.Helper()
	queue := newSiwCQ(t, 4)
	c := &cq{dev: &device{}, queue: queue, size: 4, qps: make(map[uint32]*qp)}
	q := &qp{num: 9}
	c.attach(q)
	return c, queue, q
}

func TestStrandedRequestsCompleteAfterThoseOfTheKernel(t *testing.T) {
	c, queue, _ := cqWithQP(t)
	kernelCompletes(queue, 0, siwCQE{id: 1, qpID: 9}, siwValid, siwOpSend, 0)
	kernelCompletes(queue, 1, siwCQE{id: 2, qpID: 9}, siwValid, siwOpSend, 4)
	c.flushed(9, []uint64{3, 4})
	c.flushed(8, []uint64{5}) // a QP that is gone
	var ids []uint64
	var wcs [2]verbs.WC
	for {
		c.mu.Lock()
		n, _, err := c.take(wcs[:])
		c.mu.Unlock()
		require.NoError(t, err)
		if n == 0 {
			break
		}
		for _, wc := range wcs[:n] {
			ids = append(ids, wc.ID)
			if wc.ID > 1 {
				require.Equal(t, verbs.WCWRFlushErr, wc.Status)
			}
		}
	}
	require.Equal(t, []uint64{1, 2, 3, 4}, ids)
}

func TestStrandedRequestsOfADestroyedQPAreDropped(t *testing.T) {
	c, _, q := cqWithQP(t)
	other := &qp{num: 10}
	c.attach(other)
	c.flushed(9, []uint64{1, 2})
	c.flushed(10, []uint64{3})
	c.purge(q, true)
	var wcs [4]verbs.WC
	n, _, err := c.take(wcs[:])
	require.NoError(t, err)
	require.Equal(t, []verbs.WC{{ID: 3, QPN: 10, Status: verbs.WCWRFlushErr}}, wcs[:n])
}

func TestStrandedRequestsAreBoundedByTheSizeOfTheCQ(t *testing.T) {
	c, _, _ := cqWithQP(t)
	require.Equal(t, 3, c.room(3))
	require.Equal(t, 4, c.room(100))
	c.flushed(9, []uint64{1, 2, 3})
	require.Equal(t, 1, c.room(100))
	c.flushed(9, []uint64{4, 5})
	require.Zero(t, c.room(100))
}

func TestErrorThatIsNoRefusalOfTheDoorbellIsTold(t *testing.T) {
	other := errors.New("other")
	_, err := siwBell(other)
	require.ErrorIs(t, err, other)
}
