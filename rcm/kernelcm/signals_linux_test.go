package kernelcm

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What interrupts a call that can be interrupted elsewhere does not here, and
// comes afterwards.
func TestNoSignalInterruptsACallWithoutSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	came := make(chan os.Signal, 1)
	signal.Notify(came, unix.SIGUSR1)
	defer signal.Stop(came)

	// sleep sleeps in the kernel while its thread is sent a signal. The time is
	// no limit of the test, it only has to be longer than sending takes.
	sleep := func() error {
		thread := unix.Gettid()
		var sender sync.WaitGroup
		sender.Go(func() {
			time.Sleep(10 * time.Millisecond)
			assert.NoError(t, unix.Tgkill(unix.Getpid(), thread, unix.SIGUSR1))
		})
		defer sender.Wait()
		nap := unix.NsecToTimespec(int64(300 * time.Millisecond))
		return unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &nap, nil)
	}
	for {
		// Until the signal came while it slept.
		if err := sleep(); err != nil {
			require.ErrorIs(t, err, unix.EINTR)
			break
		}
	}
	<-came // ended by the signal that interrupted
	require.NoError(t, withoutSignals(sleep))
	<-came // ended by the signal that was held back
}
