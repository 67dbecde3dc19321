package samehost

import (
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/linger"
	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// patience is for what has to happen, on a busy machine too. It is much shorter than
// what lingers here does.
const patience = 60 * time.Second

// attack connects to a name and sends packets, of which the last has a lingering
// socket with it. It says whether the kernel let it.
func attack(t *testing.T, typ int, name string, packets ...string) (c net.Conn, sent bool) {
	t.Helper()
	network := map[int]string{unix.SOCK_SEQPACKET: "unixpacket", unix.SOCK_STREAM: "unix"}[typ]
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: name})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	fd, end := linger.Socket(t)
	for i, p := range packets {
		var rights []byte
		if i == len(packets)-1 {
			rights = unix.UnixRights(fd)
		}
		if _, _, err = conn.WriteMsgUnix([]byte(p), rights, nil); err != nil {
			break
		}
	}
	if err != nil { // it must not linger here
		require.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}))
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		unix.Close(fd) // ended by the end of peer, if it lingers
	}()
	select {
	case <-closed:
	case <-time.After(time.Second): // the victim was faster, and this is the last reference
		end()
		<-closed
	}
	return conn, err == nil
}

// onBothKernels runs a test with the kernel's SO_PASSRIGHTS, if it has that, and
// without.
func onBothKernels(t *testing.T, test func(t *testing.T, old bool)) {
	fd, err := newSocket(unix.SOCK_SEQPACKET)
	require.NoError(t, err)
	has := passrights.Set(fd, 0)
	unix.Close(fd)
	if has {
		t.Run("with SO_PASSRIGHTS", func(t *testing.T) { test(t, false) })
	}
	t.Run("without SO_PASSRIGHTS", func(t *testing.T) {
		passrights.Missing.Store(true)
		defer passrights.Missing.Store(false)
		test(t, true)
	})
}

// closed waits until nothing waits to be closed.
func closed(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		waiting.mu.Lock()
		defer waiting.mu.Unlock()
		return waiting.running == 0 && len(waiting.queue) == 0
	}, patience, time.Millisecond)
}

// goroutines returns a function that waits until there are no more than now.
func goroutines(t *testing.T) (same func()) {
	before := runtime.NumGoroutine()
	return func() {
		t.Helper()
		for end := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			require.Less(t, time.Now(), end, "goroutines are left")
		}
	}
}

func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select { // ended by do
	case <-done:
	case <-time.After(patience):
		t.Fatal(what, "is held up")
	}
}

func TestWhatStrangersSendHoldsUpNobody(t *testing.T) {
	for kind, typ := range map[string]int{"packets": unix.SOCK_SEQPACKET, "a stream": unix.SOCK_STREAM} {
		t.Run(kind, func(t *testing.T) {
			onBothKernels(t, func(t *testing.T, old bool) {
				same := goroutines(t)
				var strangers atomic.Bool
				strangers.Store(true)
				var denied atomic.Int32
				l, err := Listen(ListenConfig{
					Type: typ, Name: newName(), Backlog: unix.SOMAXCONN,
					Admit:  func(Peer) bool { return !strangers.Load() },
					Denied: func(Peer) { denied.Add(1) },
				})
				require.NoError(t, err)
				accepted := make(chan *Conn, 1)
				go func() {
					c, _ := l.Accept() // ended by the one who is admitted
					accepted <- c
				}()
				const attacks = 2 * maxClosers
				for i := range attacks {
					_, sent := attack(t, typ, l.Name(), "x")
					require.True(t, old || !sent, "attack %d", i)
				}
				require.Eventually(t, func() bool { return denied.Load() == attacks }, patience, time.Millisecond)
				strangers.Store(false)
				c, err := Dial(typ, nil, l.Name())
				require.NoError(t, err)
				defer c.Close()
				within(t, "an honest peer", func() { require.NoError(t, (<-accepted).Close()) })
				for range attacks { // these nobody accepts
					attack(t, typ, l.Name(), "x")
				}
				within(t, "Close", func() { require.NoError(t, l.Close()) })
				again, err := Listen(ListenConfig{Type: typ, Name: l.Name()})
				require.NoError(t, err, "the name is free")
				require.NoError(t, again.Close())
				closed(t)
				same()
			})
		})
	}
}

// A peer that is admitted may send what it likes. Whoever closes the connection does
// not wait for that.
func TestCloseDoesNotWaitForWhatIsUnread(t *testing.T) {
	for name, packets := range map[string][]string{
		"a packet":               {"x"},
		"the second packet":      {"x", "y"},
		"a packet without data":  {""},
		"the second without any": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			onBothKernels(t, func(t *testing.T, old bool) {
				l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8, Admit: everybody})
				require.NoError(t, err)
				defer l.Close()
				bystander, err := Dial(unix.SOCK_SEQPACKET, nil, l.Name())
				require.NoError(t, err)
				defer bystander.Close()
				c, err := l.Accept()
				require.NoError(t, err)
				require.Equal(t, !old, c.TakeDescriptors())
				require.NoError(t, c.Close(), "of which nothing is unread")

				passrights.Missing.Store(true) // so that something comes
				peer, sent := attack(t, unix.SOCK_SEQPACKET, l.Name(), packets...)
				passrights.Missing.Store(!old)
				if !sent { // before it was admitted
					return
				}
				c, err = l.Accept()
				require.NoError(t, err)
				within(t, "Close", func() { c.Close() })
				_, err = peer.Read(make([]byte, 1))
				require.Error(t, err, "it is hung up on")
				closed(t)
			})
		})
	}
}

// Out-of-band data of a stream is no way to send something that is closed where the stream is read.
func TestAReadDoesNotWaitForWhatIsOutOfBand(t *testing.T) {
	onBothKernels(t, func(t *testing.T, old bool) {
		l, err := Listen(ListenConfig{Type: unix.SOCK_STREAM, Name: newName(), Backlog: 8})
		require.NoError(t, err)
		defer l.Close()
		peer, err := Dial(unix.SOCK_STREAM, nil, l.Name())
		require.NoError(t, err)
		defer peer.Close()
		c, err := l.Accept()
		require.NoError(t, err)
		fd, end := linger.Socket(t)
		raw, err := peer.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(to uintptr) {
			_, err = unix.SendmsgN(int(to), []byte("x"), unix.UnixRights(fd), nil, unix.MSG_OOB)
		}))
		if err != nil { // the kernel refuses descriptors, or has no out-of-band data
			require.True(t, !old || err == unix.EOPNOTSUPP, err)
			end() // so that it does not linger here
		}
		unix.Close(fd)
		_, err = peer.Write([]byte("y"))
		require.NoError(t, err)
		for got := 0; got == 0; {
			within(t, "Read", func() { got, err = c.Read(make([]byte, 1)) })
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		closed(t)
	})
}

// Who reads while another closes is the last to let go of the descriptor, and does not
// wait for what is unread either.
func TestAReadThatCloseEndsDoesNotWait(t *testing.T) {
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	defer l.Close()
	peer, err := Dial(unix.SOCK_SEQPACKET, nil, l.Name())
	require.NoError(t, err)
	defer peer.Close()
	c, err := l.Accept()
	require.NoError(t, err)
	c.TakeDescriptors()
	fd, _ := linger.Socket(t)
	raw, err := peer.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(to uintptr) {
		_, err = unix.SendmsgN(int(to), []byte("x"), unix.UnixRights(fd), nil, 0)
	}))
	require.NoError(t, err)
	unix.Close(fd)
	reads, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.raw.Read(func(uintptr) bool {
			close(reads)
			<-goOn
			return true
		})
	}()
	<-reads
	within(t, "Close", func() { c.Close() })
	require.Eventually(t, func() bool { return c.SetDeadline(time.Time{}) != nil }, patience, time.Millisecond, "the file is closed")
	close(goOn)
	within(t, "Read", func() { <-done })
	closed(t)
}

func TestDescriptorsThatNobodyWantsAreClosedElsewhere(t *testing.T) {
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	defer l.Close()
	fd, _ := linger.Socket(t)
	peer, err := Dial(unix.SOCK_SEQPACKET, nil, l.Name())
	require.NoError(t, err)
	defer peer.Close()
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	c.TakeDescriptors()
	many := make([]int, 253)
	for i := range many {
		many[i] = fd
	}
	raw, err := peer.SyscallConn()
	require.NoError(t, err)
	send := func(packet []byte) {
		require.NoError(t, raw.Control(func(to uintptr) {
			_, err = unix.SendmsgN(int(to), packet, unix.UnixRights(many...), nil, 0)
		}))
		require.NoError(t, err)
	}
	from, err := c.SyscallConn()
	require.NoError(t, err)
	send([]byte("all there are"))
	n, fds, err := Receive(from, make([]byte, 32))
	require.NoError(t, err)
	require.Equal(t, len("all there are"), n)
	require.Len(t, fds, len(many))
	within(t, "CloseReceived", func() { CloseReceived(fds...) })
	require.NoError(t, from.Control(func(fd uintptr) { // as Close does beside a Receive
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}))
	require.NoError(t, err)
	send([]byte("with credentials"))
	_, fds, err = Receive(from, make([]byte, 32))
	require.NoError(t, err)
	require.Len(t, fds, len(many))
	send([]byte("too long"))
	send([]byte("unexpected"))
	require.NoError(t, unix.Close(fd))
	within(t, "CloseReceived", func() { CloseReceived(fds...) })
	within(t, "Receive", func() {
		_, _, err := Receive(from, make([]byte, 4))
		require.ErrorIs(t, err, ErrTruncated)
	})
	within(t, "Read", func() {
		n, err := c.Read(make([]byte, 32))
		require.NoError(t, err)
		require.Equal(t, len("unexpected"), n)
	})
	closed(t)
	peer.Close()
	_, _, err = Receive(from, make([]byte, 4))
	require.ErrorIs(t, err, io.EOF)
}

// stuck is a close that no signal ends.
type stuck chan struct{}

func (s stuck) Close() error { <-s; return nil }

// When all that may wait does, nothing more is accepted or dialed, until one is done.
func TestWhatWaitsToBeClosedIsBounded(t *testing.T) {
	same := goroutines(t)
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	hung := make(stuck)
	for range maxClosers + maxWaiting {
		waiting.add(hung)
	}
	require.Eventually(t, waiting.full, patience, time.Millisecond)
	_, err = Dial(unix.SOCK_SEQPACKET, nil, l.Name())
	require.ErrorIs(t, err, unix.EAGAIN)
	conn, err := net.Dial("unixpacket", l.Name())
	require.NoError(t, err)
	defer conn.Close()
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept() // ended by the room below
		accepted <- err
	}()
	select {
	case <-accepted:
		t.Fatal("accepted though too much waits")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, l.SetDeadline(time.Now())) // ends the wait that has begun
	require.ErrorIs(t, <-accepted, os.ErrDeadlineExceeded)
	_, err = l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, l.SetDeadline(time.Time{}))
	go func() {
		_, err := l.Accept() // ended by the room below
		accepted <- err
	}()
	hung <- struct{}{}
	require.NoError(t, <-accepted)
	waiting.add(hung)
	go func() {
		_, err := l.Accept() // ended by Close
		accepted <- err
	}()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-accepted, net.ErrClosed)
	close(hung)
	closed(t)
	same()
}

func TestAListenerEnds(t *testing.T) {
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	_, err = Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: l.Name()})
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.NoError(t, l.SetDeadline(time.Unix(1, 0)))
	_, err = l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, l.SetDeadline(time.Time{}))
	ended := make(chan error)
	go func() {
		_, err := l.Accept() // ended by Close
		ended <- err
	}()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	require.ErrorIs(t, l.Close(), net.ErrClosed)
	require.ErrorIs(t, l.SetDeadline(time.Time{}), net.ErrClosed)
	_, err = Dial(unix.SOCK_SEQPACKET, nil, l.Name())
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

// Without a descriptor left, Accept waits for one, and no longer than its deadline.
func TestAnAcceptThatLacksADescriptorHasADeadline(t *testing.T) {
	l, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: newName(), Backlog: 8})
	require.NoError(t, err)
	defer l.Close()
	fd, err := newSocket(unix.SOCK_SEQPACKET)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, connect(fd, l.Name()))
	ended := make(chan error)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
	go func() {
		_, err := l.Accept() // ended by the deadline
		ended <- err
	}()
	time.Sleep(20 * time.Millisecond) // it has found that there is none, most likely
	err = l.SetDeadline(time.Now())
	got := <-ended
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, err)
	require.ErrorIs(t, got, os.ErrDeadlineExceeded)
}
