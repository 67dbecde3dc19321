//go:build linux

package sys

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Whoever has the word mapped can have any number of threads sleep on it. Who wakes the one that
// should be there does not wake them all.
func TestAWakeWakesOneSleeper(t *testing.T) {
	mem, err := MapAnonymous(unix.Getpagesize(), 0)
	require.NoError(t, err)
	defer Unmap(mem, OfNobody)
	word := (*atomic.Uint32)(unsafe.Pointer(&mem[0]))
	futex := func(op, val, val2 uintptr) (uintptr, error) {
		addr := uintptr(unsafe.Pointer(word))
		n, _, errno := unix.Syscall6(unix.SYS_FUTEX, addr, op, val, val2, addr, 0)
		if errno != 0 {
			return n, errno
		}
		return n, nil
	}
	const sleepers = 3
	var woken atomic.Int32
	var group sync.WaitGroup
	for range sleepers {
		group.Go(func() {
			err := error(unix.EINTR)
			for err == unix.EINTR { // by a signal of the runtime
				_, err = futex(futexWaitOp, 0, 0)
			}
			if err == nil {
				woken.Add(1)
			}
		})
	}
	// FUTEX_REQUEUE to the same word moves nobody, and counts those that sleep.
	asleep := func(n uintptr) bool {
		const requeue = 3
		counted, err := futex(requeue, 0, sleepers)
		return err == nil && counted == n
	}
	require.Eventually(t, func() bool { return asleep(sleepers) }, 10*time.Second, time.Millisecond)
	FutexWake(Word(word))
	one := func() bool { return woken.Load() == 1 && asleep(sleepers-1) }
	assert.Eventually(t, one, 10*time.Second, time.Millisecond)
	word.Store(1)
	for !asleep(0) {
		FutexWake(Word(word))
	}
	group.Wait()
}
