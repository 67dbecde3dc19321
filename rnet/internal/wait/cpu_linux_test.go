package wait

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A thread that leaves its CPU runs on another one, and may run where it could before.
func TestLeaveCPU(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	moved := before.Count() == 1
	for range 100 {
		cpu := currentCPU()
		var one unix.CPUSet
		one.Set(cpu)
		if before.Count() > 1 {
			// Held there until it leaves, so that it cannot be elsewhere by chance.
			require.NoError(t, unix.SchedSetaffinity(0, &one))
			require.False(t, leaveCPU(), "it may run nowhere else")
			require.Equal(t, cpu, currentCPU())
			require.NoError(t, unix.SchedSetaffinity(0, &before))
			require.True(t, leaveCPU())
			moved = moved || currentCPU() != cpu // the kernel may have moved it back
		} else {
			require.False(t, leaveCPU(), "it may run nowhere else")
		}
		require.NoError(t, unix.SchedGetaffinity(0, &after))
		require.Equal(t, before, after)
	}
	require.True(t, moved)
}

// The peer is always where we are.
func TestAttemptsToLeaveThePeersCPUBecomeRarer(t *testing.T) {
	var allowed unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &allowed))
	if allowed.Count() == 1 {
		t.Skip("there is no other CPU")
	}
	var p Placement
	attempts := func(calls int) (n int) {
		for range calls {
			if p.Leave() {
				n++
			}
		}
		return n
	}
	first := attempts(1 << 16)
	require.Greater(t, first, 16)
	require.Less(t, attempts(1<<16), 1<<16/(maxStays/2)+1)
	p.Settle()
	p.stay = 0
	require.Greater(t, attempts(16), 1, "often again")
}

// Two threads that compute on one CPU wait for it in turn.
func TestThreadDelays(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	cpu := currentCPU()
	var done atomic.Bool
	other := make(chan bool)
	stay := func() bool {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		var one unix.CPUSet
		one.Set(cpu)
		return unix.SchedSetaffinity(0, &one) == nil
	}
	go func() {
		other <- stay()
		for !done.Load() { // ended by the test
		}
		close(other)
	}()
	require.True(t, <-other)
	go func() {
		defer done.Store(true)
		var d threadDelays
		if !assert.True(t, stay()) || !assert.Zero(t, d.since(now()), "nothing is known before") {
			return
		}
		for d.since(now()) < time.Millisecond { // ended by the kernel's scheduler
			for begin := now(); now()-begin < 5*time.Millisecond; {
			}
		}
	}()
	<-other
}
