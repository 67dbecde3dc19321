//go:build amd64 || arm64

package ibverbs

import (
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// failing is a QP of rxe, which flushes the receives that are there when the QP is taken to ERR, and
// looks at later ones only when it is told again.
type failing struct {
	*qp
	told []uint64 // how many receives were there when the kernel was told of ERR
}

// newFailing makes one, of which the kernel calls first when it is told the first time.
func newFailing(t *testing.T, first func(*failing)) *failing {
	t.Helper()
	d := &device{lib: new(library), entry: rdmahost.Device{DriverID: rdmahost.DriverRXE}}
	d.ops[opPostRecv] = libc(t, "isalpha") // 0, of the address
	room, err := newArena(0)
	require.NoError(t, err)
	f := &failing{qp: &qp{dev: d, typ: verbs.QPTypeRC, address: uintptr(unix.EACCES), num: 5, recvLimit: 4}}
	f.recv.room = room
	t.Cleanup(f.recv.room.free)
	f.state.Store(uint32(verbs.QPStateRTS))
	d.lib.modifyQP = purego.NewCallback(func(qp, attr, mask uintptr) uintptr {
		f.told = append(f.told, f.recv.posted)
		if len(f.told) == 1 {
			first(f)
		}
		return 0
	})
	return f
}

func (f *failing) post(t *testing.T) {
	t.Helper()
	n, err := f.PostRecv(make([]verbs.RecvWR, 1))
	assert.NoError(t, err) // in a call of C's nothing ends the test
	assert.Equal(t, 1, n)
}

func TestAReceiveThatComesWhileAQPOfRXEIsTakenToERRIsFlushed(t *testing.T) {
	f := newFailing(t, func(f *failing) { f.post(t) }) // the kernel has flushed, and not returned yet
	require.NoError(t, f.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.QPAttrState))
	require.NotEmpty(t, f.told)
	require.EqualValues(t, 1, f.told[len(f.told)-1], "nobody tells the kernel of the receive: %v", f.told)
}

func TestAReceiveThatComesBeforeTheErrorOfAQPOfRXEIsFlushed(t *testing.T) {
	f := newFailing(t, func(*failing) {})
	f.post(t)
	require.Empty(t, f.told)
	errs := []ibvWC{{wrID: 1, qpNum: f.num, status: int32(verbs.WCRetryExcErr)}, {wrID: 2, qpNum: f.num, status: int32(verbs.WCWRFlushErr)}}
	f.dev.ops[opPollCQ] = purego.NewCallback(func(cq, most, wc uintptr) uintptr {
		n := copy(unsafe.Slice(view[ibvWC](wc), most), errs)
		errs = errs[n:]
		return uintptr(n)
	})
	room, err := newArena(0)
	require.NoError(t, err)
	defer room.free()
	c := &cq{dev: f.dev, qps: map[uint32]*qp{f.num: f.qp}, room: room, size: 4}
	n, err := c.Poll(make([]verbs.WC, 4))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []uint64{1}, f.told, "the kernel is told once")

	// Not after RESET, which the QP may come to before.
	f.sendCQ, f.recvCQ = c, c
	f.empty()
	f.flush()
	require.Len(t, f.told, 1)
}

// The event may be read before a completion is polled that shows the same.
func TestAReceiveThatComesBeforeTheEventOfAQPOfRXEIsFlushed(t *testing.T) {
	f := newFailing(t, func(*failing) {})
	f.dev.lib.queryQP = purego.NewCallback(func(qp, attr, mask, init uintptr) uintptr {
		view[ibvQPAttr](attr).qpState = int32(verbs.QPStateErr)
		return 0
	})
	f.post(t)
	f.failedByEvent()
	require.Equal(t, []uint64{1}, f.told)
	require.False(t, f.completed(&verbs.WC{Status: verbs.WCWRFlushErr}), "nobody is told again")
}
