package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// cqWithQP is a CQ over memory of the test, with a QP that reports to it.
func cqWithQP(t *testing.T) (*cq, sharedMemory, *qp) {
	t.Helper()
	mem := newSiwMemory(4)
	c := &cq{dev: &device{}, queue: newSiwCQ(t, mem, 4), size: 4, qps: make(map[uint32]*qp)}
	q := &qp{num: 9}
	c.attach(q)
	return c, mem, q
}

func TestStrandedRequestsCompleteAfterThoseOfTheKernel(t *testing.T) {
	c, mem, _ := cqWithQP(t)
	siwCompletes(mem, 0, 1, 9, 0)
	siwCompletes(mem, 1, 2, 9, 4)
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

func TestCompletionsThatNobodyIsToSeeLeaveNoHoles(t *testing.T) {
	c, mem, _ := cqWithQP(t)
	siwCompletes(mem, 0, 1, 8, 0) // of a QP that is gone
	siwCompletes(mem, 1, 2, 9, 0)
	siwCompletes(mem, 2, emptyWriteID, 9, 0)
	siwCompletes(mem, 3, 3, 9, 0)
	var wcs [4]verbs.WC
	n, err := c.Poll(wcs[:])
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []uint64{2, 3}, []uint64{wcs[0].ID, wcs[1].ID})
	require.EqualValues(t, 2, c.qps[9].sendDone.Load())
}
