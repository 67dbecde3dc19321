//go:build linux

package soft

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// threadTime returns how long the calling thread has had a processor.
func threadTime(t testing.TB) time.Duration {
	t.Helper()
	var used unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_THREAD, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// A peer that hangs up its end of our wake-up socket, and stays otherwise, neither ends
// our waits nor makes a thread of ours go round.
func TestAPeerThatHangsUpTheWakeSocketIsWaitedForAllTheSame(t *testing.T) {
	for name, hangUp := range map[string]func(fd int){
		"closed":        func(int) {}, // pair does that
		"shut down":     func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) },
		"sends no more": func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t)
			_, fds := s.pairWith(s.hello())
			hangUp(fds[1])
			if name == "closed" {
				sys.CloseFDs(fds[1])
				fds = fds[:1]
			}
			defer sys.CloseFDs(fds...)
			ch := s.v.recv.ch
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			waits := map[string]func(time.Time) error{"goroutine": ch.Wait, "thread": ch.WaitThread}
			for kind, wait := range waits {
				before := threadTime(t)
				const patience = 100 * time.Millisecond
				require.ErrorIs(t, wait(time.Now().Add(patience)), os.ErrDeadlineExceeded, kind)
				require.Less(t, threadTime(t)-before, patience/2, kind)
			}
			ch.Wake()
			for kind, wait := range waits {
				require.NoError(t, wait(time.Now().Add(10*time.Second)), kind)
			}
		})
	}
}

// Wake and Close end a thread's wait in poll(2), which is how it waits while no CQ is armed.
func TestAPollOfTheWakeSocketEnds(t *testing.T) {
	s := newStranger(t)
	s.pair()
	ch := s.v.recv.ch
	for _, end := range []func(){ch.Wake, func() { ch.Close() }} {
		ended := make(chan error, 1)
		go func() { ended <- ch.WaitThread(time.Time{}) }()
		require.Eventually(t, func() bool {
			ch.mu.Lock()
			defer ch.mu.Unlock()
			return ch.polling > 0
		}, 10*time.Second, time.Millisecond)
		end()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("the thread still waits")
		}
	}
	require.ErrorIs(t, ch.WaitThread(time.Time{}), verbs.ErrClosed)
}

// A thread that waits where there is no descriptor for what would end that returns soon
// for no reason.
func TestAPollThatNothingCouldEndIsShort(t *testing.T) {
	s := newStranger(t)
	s.pair()
	refuseIf(t, func(call string) error {
		if call == "eventfd" {
			return unix.EMFILE
		}
		return nil
	})
	ch := s.v.recv.ch
	require.NoError(t, ch.WaitThread(time.Time{}))
	require.NoError(t, ch.Close())
	require.ErrorIs(t, ch.WaitThread(time.Time{}), verbs.ErrClosed)
}

// The last close of a descriptor that comes to a wake-up socket would be done where the
// socket is read, and take as long as the peer wants.
func TestNoDescriptorsComeToAWakeSocket(t *testing.T) {
	near, far, err := sys.NewWakeSocket()
	require.NoError(t, err)
	defer sys.CloseFDs(near, far)
	if err := unix.SetsockoptInt(far, unix.SOL_SOCKET, sys.SoPassRights, 0); err != nil {
		t.Skip("kernels before 6.16 cannot refuse descriptors: ", err)
	}
	require.ErrorIs(t, unix.Sendmsg(far, []byte{0}, unix.UnixRights(far), nil, unix.MSG_DONTWAIT), unix.EPERM)
	sys.SendWake(far)
	some, spoiled := sys.DrainWakes(near)
	require.True(t, some && !spoiled)
}

// Without room for descriptors of ours the kernel closes those that come in the thread that reads.
func TestAWakeSocketIsShutWhenDescriptorsComeThatThereIsNoRoomFor(t *testing.T) {
	near, far, err := sys.NewWakeSocket()
	require.NoError(t, err)
	defer sys.CloseFDs(near, far)
	_ = unix.SetsockoptInt(near, unix.SOL_SOCKET, sys.SoPassRights, 1) // as before Linux 6.16
	require.NoError(t, unix.Sendmsg(far, []byte{0}, unix.UnixRights(far), nil, unix.MSG_DONTWAIT))
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
	some, spoiled := sys.DrainWakes(near)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.True(t, some && spoiled)
	require.ErrorIs(t, unix.Sendto(far, []byte{0}, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil), unix.EPIPE)
}
