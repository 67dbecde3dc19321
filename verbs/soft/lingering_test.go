//go:build linux

package soft

import (
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/internal/linger"
	"github.com/seed-b9b531af/ramjet/internal/thread"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Whoever has a descriptor of a Unix socket can put other descriptors into its queue, and
// the last close of the socket is the last close of those. A TCP socket that lingers can
// make that take hours.

// queue sends a lingering socket through to, and leaves it to whoever is at the other end.
// The function ends its lingering.
func queue(t testing.TB, to int) (end func()) {
	t.Helper()
	return queueAs(t, to, 0)
}

// queueAs is queue with flags for sendmsg.
func queueAs(t testing.TB, to, flags int) (end func()) {
	t.Helper()
	fd, end := linger.Socket(t)
	require.NoError(t, unix.Sendmsg(to, []byte{1}, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|flags))
	letGo(end, fd)
	return end
}

// letGo closes descriptors of the test, and calls end if the victim was faster, so that the
// last close is this one.
func letGo(end func(), fds ...int) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		sys.CloseFDs(fds...)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
		end()
		<-closed
	}
}

// takeDescriptors has the near wake-up socket take them, as it does before Linux 6.16.
func takeDescriptors(t testing.TB, near *os.File) {
	t.Helper()
	raw, err := near.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, sys.SoPassRights, 1)
	}))
}

// within fails the test if f takes long, and calls end for what f waits for then. It runs
// f on a thread to which the scheduler sends no signals: they would end the wait.
func within(t testing.TB, what string, end func(), f func()) {
	t.Helper()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		thread.Run(func() {
			var urgent unix.Sigset_t
			bit := uint(unix.SIGURG) - 1
			urgent.Val[bit/uint(8*unsafe.Sizeof(urgent.Val[0]))] |= 1 << (bit % uint(8*unsafe.Sizeof(urgent.Val[0])))
			if err := unix.PthreadSigmask(unix.SIG_BLOCK, &urgent, nil); err != nil {
				t.Error(err)
			}
			f()
		})
	}()
	select {
	case <-returned:
	case <-time.After(10 * time.Second):
		end()
		<-returned
		t.Fatal(what, "waits for what a peer has sent")
	}
}

func TestThePeersWakeSocketIsClosedWithoutWaiting(t *testing.T) {
	CheckLeaks(t)
	s := newStranger(t)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	end := queue(t, ends[0])
	h := s.hello()
	h.Flags = protocol.HelloWakeSocket
	conn := s.dial()
	s.say(conn, protocol.EncodeHello(h), s.memfd(protocol.GeometryFor(32).Size(), segmentSeals), ends[1])
	_, fds, err := s.nextPacket(conn)
	require.NoError(t, err)
	require.Eventually(t, s.paired, 10*time.Second, time.Millisecond)
	letGo(end, append(fds, ends[:]...)...) // the victim has the last descriptor now
	conn.Close()
	other, err := s.v.pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	within(t, "Destroy", end, func() { require.NoError(t, s.v.q.Destroy()) })
	within(t, "Deregister", end, func() { require.NoError(t, other.Deregister()) })
}

// The same where the pair does not come about.
func TestTheWakeSocketOfAPeerThatIsNotTakenIsClosedWithoutWaiting(t *testing.T) {
	CheckLeaks(t)
	s := newStranger(t)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	end := queue(t, ends[0])
	h := s.hello()
	h.Flags = protocol.HelloWakeSocket
	refuseIf(t, func(call string) error {
		if call == "dup" { // our hello cannot be said
			return unix.EMFILE
		}
		return nil
	})
	conn := s.dial()
	s.say(conn, protocol.EncodeHello(h), s.memfd(protocol.GeometryFor(32).Size(), segmentSeals), ends[1])
	letGo(end, ends[:]...)
	s.hungUp(conn)
	within(t, "Destroy", end, func() { require.NoError(t, s.v.q.Destroy()) })
}

// What comes to our own wake-up sockets where the kernel cannot refuse descriptors.
func TestDescriptorsThatComeToAWakeSocketAreClosedElsewhere(t *testing.T) {
	// pair returns what the peer wakes us by.
	pair := func(t *testing.T, s *stranger) int {
		_, fds := s.pairWith(s.hello())
		t.Cleanup(func() { sys.CloseFDs(fds...) })
		return fds[1]
	}
	soon := func() time.Time { return time.Now().Add(5 * time.Millisecond) }
	cases := map[string]func(ch *channel){
		"DrainWakes": func(ch *channel) {
			require.NoError(t, ch.raw.Control(func(fd uintptr) { sys.DrainWakes(int(fd)) }))
		},
		"WaitThread": func(ch *channel) { require.ErrorIs(t, ch.WaitThread(soon()), os.ErrDeadlineExceeded) },
		"Close":      func(ch *channel) { require.NoError(t, ch.Close()) },
	}
	for name, call := range cases {
		for kind, flags := range map[string]int{"": 0, ", out of band": unix.MSG_OOB} {
			t.Run(name+kind, func(t *testing.T) {
				CheckLeaks(t)
				s := newStranger(t)
				far := pair(t, s)
				takeDescriptors(t, s.v.recv.ch.file)
				end := queueAs(t, far, flags)
				within(t, name, end, func() { call(s.v.recv.ch) })
			})
		}
	}
	t.Run("a second QP's", func(t *testing.T) {
		CheckLeaks(t)
		s := newStranger(t)
		ch := s.v.recv.ch
		extra := &inbound{}
		far, err := ch.wakeSocket(s.v.q.in)
		require.NoError(t, err)
		defer sys.CloseFDs(far)
		second, err := ch.wakeSocket(extra)
		require.NoError(t, err)
		defer sys.CloseFDs(second)
		near := ch.others[extra].file
		takeDescriptors(t, near)
		end := queue(t, second)
		within(t, "who passes it on", end, func() { takesNoMore(t, second) })
		within(t, "Close", end, func() {
			ch.mu.Lock()
			defer ch.mu.Unlock()
			ch.closeExtra(extra)
		})
	})
}

// Without room for them the kernel closes descriptors in the goroutine that reads, so that the
// socket of a second QP is read no more, as that of the first.
func TestTheWakeSocketOfASecondQPIsShutWhenDescriptorsComeThatThereIsNoRoomFor(t *testing.T) {
	s := newStranger(t)
	ch := s.v.recv.ch
	first, err := ch.wakeSocket(s.v.q.in)
	require.NoError(t, err)
	defer sys.CloseFDs(first)
	extra := &inbound{}
	second, err := ch.wakeSocket(extra)
	require.NoError(t, err)
	defer sys.CloseFDs(second)
	takeDescriptors(t, ch.others[extra].file)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	require.NoError(t, unix.Sendmsg(second, []byte{1}, unix.UnixRights(second), nil, unix.MSG_DONTWAIT))
	takesNoMore(t, second)
}

// takesNoMore returns when a peer cannot send to its wake-up socket any more.
func takesNoMore(t testing.TB, far int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); unix.Sendto(far, []byte{1}, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil) != unix.EPIPE; {
		if time.Now().After(deadline) {
			t.Error("the peer can send on")
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A peer could send descriptors to a wake-up socket without end, and faster than they can be closed, until
// the process had none left. With the first of them the socket is its own no more, and its pair goes on
// without it.
func TestAPeerDoesNotGoOnSendingDescriptorsToAWakeSocket(t *testing.T) {
	soon := func() time.Time { return time.Now().Add(5 * time.Millisecond) }
	for name, wait := range map[string]func(ch *channel) error{
		"Wait":       func(ch *channel) error { return ch.Wait(soon()) },
		"WaitThread": func(ch *channel) error { return ch.WaitThread(soon()) },
	} {
		t.Run(name, func(t *testing.T) {
			CheckLeaks(t)
			s := newStranger(t)
			_, fds := s.pairWith(s.hello())
			t.Cleanup(func() { sys.CloseFDs(fds...) })
			ch := s.v.recv.ch
			takeDescriptors(t, ch.file)
			for range 3 {
				require.NoError(t, unix.Sendmsg(fds[1], []byte{1}, unix.UnixRights(fds[0], fds[0]), nil, unix.MSG_DONTWAIT))
			}
			s.v.q.in.armings.Store(wakesKept) // the socket is due to be read
			// A wait whose deadline has passed before it began does not read the socket.
			for n := 0; n < 3 || n < 1000 && !ch.spoiled.Load(); n++ {
				require.ErrorIs(t, wait(ch), os.ErrDeadlineExceeded)
			}
			takesNoMore(t, fds[1])
			require.True(t, ch.spoiled.Load())
			require.NoError(t, s.v.recv.Arm(false))
			s.v.q.in.seg.Header.Arm.Store(0)
			require.NoError(t, ch.WaitThread(time.Now().Add(10*time.Second)))
			ch.Wake()
			require.NoError(t, wait(ch))
		})
	}
}
