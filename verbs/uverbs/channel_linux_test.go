package uverbs

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The Go scheduler sends signals to threads that have run for long.
func TestSignalsDoNotEndWaitThread(t *testing.T) {
	ch := &channel{dev: &device{}}
	for _, fd := range []*int{&ch.fd, &ch.eventfd} {
		var err error
		*fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		require.NoError(t, err)
		defer unix.Close(*fd)
	}
	thread, ended := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		ended <- ch.WaitThread(time.Now().Add(100 * time.Millisecond))
	}()
	tid := <-thread
	for {
		select {
		case err := <-ended: // ended by the deadline
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return
		case <-time.After(time.Millisecond):
			// the thread is there until the test is over
			_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
		}
	}
}
