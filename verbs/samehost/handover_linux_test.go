package samehost

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sockets returns the two ends of a connection.
func sockets(t *testing.T) (from, to *Conn) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	from, err = newConn(ends[0], unix.SOCK_SEQPACKET, false)
	require.NoError(t, err)
	to, err = newConn(ends[1], unix.SOCK_SEQPACKET, false)
	require.NoError(t, err)
	t.Cleanup(func() { from.Close(); to.Close() })
	return from, to
}

// handOver hands listeners over, and returns what comes of that.
func handOver(t *testing.T, listeners ...*Listener) []int {
	t.Helper()
	from, to := sockets(t)
	require.NoError(t, HandOver(from, []byte("yours"), listeners...))
	var packet [16]byte
	n, fds, err := Receive(to.raw, packet[:])
	require.NoError(t, err)
	require.Equal(t, "yours", string(packet[:n]))
	require.Len(t, fds, len(listeners))
	return fds
}

func anyName(string) bool { return true }

func abstractName(t *testing.T) string { return fmt.Sprintf("@%s/%d", t.Name(), os.Getpid()) }

func TestAListenerIsHandedOverWithItsNameAndItsQueue(t *testing.T) {
	cfg := ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 8, Name: abstractName(t)}
	served := make(chan *Conn, 8)
	before, err := Listen(cfg)
	require.NoError(t, err)
	require.NoError(t, before.Serve(func(c *Conn) { served <- c }))
	first, err := Dial(cfg.Type, nil, cfg.Name)
	require.NoError(t, err)
	defer first.Close()
	(<-served).Close()
	before.Pause()
	queued, err := Dial(cfg.Type, nil, cfg.Name)
	require.NoError(t, err)
	defer queued.Close()
	_, err = queued.Write([]byte("hello"))
	require.NoError(t, err)
	fds := handOver(t, before)
	require.NoError(t, before.Close())
	require.Empty(t, served, "what came after Pause was served")
	_, err = Listen(cfg)
	require.ErrorIs(t, err, unix.EADDRINUSE, "the name is free although its socket is on its way")
	after, err := Adopt(cfg, fds[0])
	require.NoError(t, err)
	defer after.Close()
	c, err := after.Accept()
	require.NoError(t, err)
	defer c.Close()
	var b [16]byte
	n, err := c.Read(b[:])
	require.NoError(t, err)
	require.Equal(t, "hello", string(b[:n]))
	require.NoError(t, after.Serve(func(c *Conn) { served <- c }))
	next, err := Dial(cfg.Type, nil, cfg.Name)
	require.NoError(t, err)
	defer next.Close()
	(<-served).Close()
	require.NoError(t, after.Close())
	_, err = Dial(cfg.Type, nil, cfg.Name)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

func TestAListenerInADirectoryIsHandedOver(t *testing.T) {
	d := newDirectory(t)
	before := meetAt(t, d, "here")
	before.Pause()
	fds := handOver(t, before)
	require.NoError(t, before.Close())
	others := meetingConfig
	others.Others = true
	after, err := d.Adopt(others, fds[0], anyName)
	require.NoError(t, err)
	defer after.Close()
	require.Equal(t, before.ID(), after.ID())
	gone, err := after.SetNames([]string{"here", "there"})
	require.NoError(t, err)
	require.False(t, gone)
	st, err := os.Stat(d.own() + "/here")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o666), st.Mode().Perm(), "it lets in whom its own configuration does")
	for _, name := range []string{"here", "there"} {
		c, err := d.dialOwn(name)
		require.NoError(t, err)
		defer c.Close()
	}
	require.NoError(t, after.Close())
	list, err := os.ReadDir(d.own())
	require.NoError(t, err)
	require.Empty(t, list)
}

// Addresses go while a listener is on its way, or with it.
func TestNamesThatAreNotWantedAnyMoreGoAfterAHandOver(t *testing.T) {
	d := newDirectory(t)
	others := meetAt(t, d, "others")
	before := meetAt(t, d, "here")
	gone, err := before.SetNames([]string{"here", "gone", "gone too"})
	require.NoError(t, err)
	require.False(t, gone)
	before.Pause()
	fds := handOver(t, before)
	require.NoError(t, before.Close())
	after, err := d.Adopt(meetingConfig, fds[0], anyName)
	require.NoError(t, err)
	defer after.Close()
	_, err = after.SetNames([]string{"here", "new"})
	require.NoError(t, err)
	for name, there := range map[string]bool{"here": true, "new": true, "others": true, "gone": false, "gone too": false} {
		c, err := d.dialOwn(name)
		require.Equal(t, there, err == nil, "%s: %v", name, err)
		if err == nil {
			c.Close()
		}
	}
	require.NoError(t, after.Close())
	require.NoError(t, others.Close())
	list, err := os.ReadDir(d.own())
	require.NoError(t, err)
	require.Empty(t, list)
}

// Who wants the listener may be gone, and the name is free then.
func TestAListenerThatNobodyTakesIsClosed(t *testing.T) {
	cfg := ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 8, Name: abstractName(t)}
	l, err := Listen(cfg)
	require.NoError(t, err)
	l.Pause()
	from, to := sockets(t)
	require.NoError(t, to.Close())
	require.ErrorIs(t, HandOver(from, []byte("yours"), l), unix.EPIPE)
	from, to = sockets(t)
	require.NoError(t, HandOver(from, []byte("yours"), l))
	require.NoError(t, to.Close()) // with what it was sent
	require.NoError(t, from.Close())
	require.NoError(t, l.Close())
	hang.Eventually(t, "the name", func() bool { // what nobody has read is closed elsewhere
		again, err := Listen(cfg)
		if err == nil {
			again.Close()
		}
		return err == nil
	})
}

func TestWhatIsNoListenerOfTheNameIsNotAdopted(t *testing.T) {
	cfg := ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 8, Name: abstractName(t)}
	other := cfg
	other.Name += "/other"
	stream := cfg
	stream.Type = unix.SOCK_STREAM
	of := func(cfg ListenConfig) int {
		l, err := Listen(cfg)
		require.NoError(t, err)
		defer l.Close()
		fds := handOver(t, l)
		return fds[0]
	}
	bound, err := unix.Socket(unix.AF_UNIX, cfg.Type|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(bound, &unix.SockaddrUnix{Name: cfg.Name + "/bound"}))
	file, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for what, fd := range map[string]int{
		"a listener of another name": of(other), "one of another type": of(stream),
		"one that does not listen": bound, "a file": file, "a socket of TCP": tcp,
	} {
		_, err := Adopt(cfg, fd)
		require.Error(t, err, what)
	}
	d := newDirectory(t)
	_, err = d.Adopt(meetingConfig, of(cfg), anyName)
	require.Error(t, err, "an abstract name")
	elsewhere := newDirectory(t)
	l := meetAt(t, elsewhere, "here")
	fds := handOver(t, l)
	_, err = d.Adopt(meetingConfig, fds[0], anyName)
	require.Error(t, err, "one in another directory")
	there := meetAt(t, d, "there")
	fds = handOver(t, there)
	_, err = d.Adopt(meetingConfig, fds[0], func(name string) bool { return name == "here" })
	require.Error(t, err, "one of another name")
	c, err := d.dialOwn("there")
	require.NoError(t, err, "its name is its own still")
	c.Close()
}

// Strangers who come without end keep nobody from handing a listener over.
func TestAFloodOfStrangersDoesNotHoldUpAHandOver(t *testing.T) {
	cfg := ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 8, Name: abstractName(t), Admit: func(Peer) bool { return false }}
	var over atomic.Bool
	begun := make(chan struct{}, 1)
	come := func() {
		if c, err := Dial(cfg.Type, nil, cfg.Name); err == nil {
			c.Close()
		}
	}
	cfg.Denied = func(Peer) { // the queue is never empty
		if !over.Load() {
			come()
		}
		select {
		case begun <- struct{}{}:
		default:
		}
	}
	l, err := Listen(cfg)
	require.NoError(t, err)
	defer l.Close()
	defer over.Store(true)
	require.NoError(t, l.Serve(func(c *Conn) { c.Close() }))
	come()
	<-begun
	hang.Start(t, l.Pause)()
	come()
	hang.Start(t, func() {
		_, err := l.Poll()
		assert.ErrorIs(t, err, errNobody)
	})()
}
