//go:build linux

package soft

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
)

// A peer can move who sleeps in a futex on the arm word to another word of its own
// (FUTEX_CMP_REQUEUE), where no FUTEX_WAKE of ours finds him. The sleep ends all the same.
func TestAPeerThatMovesTheSleeperToAnotherFutexDoesNotKeepIt(t *testing.T) {
	s := newStranger(t)
	_, fds := s.pairWith(s.hello())
	defer sys.CloseFDs(fds...)
	geo := s.v.q.in.seg.geo
	mem, err := sys.MapFD(fds[0], 0, geo.Size(), unix.PROT_READ|unix.PROT_WRITE) // as the peer has it
	require.NoError(t, err)
	defer sys.Unmap(mem, sys.OfAPeer)
	own, err := sys.MapFD(s.memfd(4096, 0), 0, 4096, unix.PROT_READ|unix.PROT_WRITE)
	require.NoError(t, err)
	defer sys.Unmap(own, sys.OfAPeer)
	word := sys.Word(&protocol.ViewOf(mem, geo).Header.Arm)
	const requeue = 3 // FUTEX_REQUEUE
	move := func(from, to *uint32) uintptr {
		n, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(from)), requeue, 0, 1, uintptr(unsafe.Pointer(to)), 0)
		require.Zero(t, errno)
		return n
	}
	ch := s.v.recv.ch
	require.NoError(t, s.v.recv.Arm(false))
	var moved atomic.Bool
	ended := make(chan error, 1)
	go func() {
		for { // a signal of the runtime ends it too
			if err := ch.WaitThread(time.Time{}); err != nil || moved.Load() {
				ended <- err
				return
			}
		}
	}()
	require.Eventually(t, func() bool {
		moved.Store(move(word, (*uint32)(unsafe.Pointer(&own[0]))) == 1)
		return moved.Load()
	}, 10*time.Second, time.Millisecond)
	ch.Wake()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		sys.FutexWake((*uint32)(unsafe.Pointer(&own[0])))
		require.Fail(t, "the sleeper does not wake")
	}
}
