package uverbs

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// What WaitThread takes ends a Wait too.
func TestWaitEndsWithTheEventThatWaitThreadTakes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer unix.Close(fds[1])
	var gone atomic.Bool
	ch := &channel{dev: &device{}, fd: fds[0]}
	ch.eventfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	require.NoError(t, err)
	require.NoError(t, ch.waits.Open(os.NewFile(uintptr(fds[0]), "channel"), &gone, ch.readEvent))
	defer ch.shut()
	waited := make(chan error, 1)
	go func() { waited <- ch.Wait(time.Time{}) }()
	hang.Parked(t, "netpoll.(*Channel).Wait")
	_, err = unix.Write(fds[1], make([]byte, 8))
	require.NoError(t, err)
	if err := ch.WaitThread(time.Now().Add(time.Second)); err != nil { // it takes the event at once
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "Wait has it")
	}
	require.NoError(t, hang.Receive(t, waited, "the end of Wait"))
}
