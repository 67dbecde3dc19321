package rnet

import (
	"net"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// streamTo dials until it gets a stream, and returns the one of the listeners'
// ends that it has.
func streamTo(t *testing.T, ln net.Listener) (dialed, accepted net.Conn) {
	t.Helper()
	hang.Eventually(t, "a stream", func() bool {
		c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		if _, ok := c.(*Conn); !ok {
			c.Close()
			return false
		}
		dialed = c
		return true
	})
	for {
		s, err := ln.Accept()
		require.NoError(t, err)
		if _, ok := s.(*Conn); ok {
			return dialed, s
		}
		s.Close() // of a dial that came before the listener had the name
	}
}

// A new process of a server takes the port while the old one still has it. When
// the old one stops accepting, dials lead to the new one, over the same transport.
func TestListenerThatSharesThePortIsNextInLine(t *testing.T) {
	address := namedPort(t, "tcp", "127.0.0.1")
	negatives.Forget(address)
	share := &ListenConfig{Control: setting(unix.SO_REUSEPORT, 1)}
	old, err := share.Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	for range 5 {
		c, s := streamTo(t, old)
		next, err := share.Listen(t.Context(), "tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { next.Close() })
		again, served := streamTo(t, old) // whoever has it keeps it
		require.NoError(t, old.Close())
		after, servedNext := streamTo(t, next)
		for _, end := range []net.Conn{c, s, again, served, after, servedNext} {
			_, err := end.Write([]byte{1}) // the old ones drain
			require.NoError(t, err)
			defer end.Close()
		}
		old = next
	}
}

// What cannot be had when a server starts may be had later.
func TestListenerTakesANameThatBecomesFree(t *testing.T) {
	address := namedPort(t, "tcp", "127.0.0.1")
	negatives.Forget(address)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "@ramjet/rcm2/" + address}))
	ln, err := Listen("tcp", address)
	require.NoError(t, err)
	defer ln.Close()
	c, err := Dial("tcp", address)
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), c)
	c.Close()
	require.NoError(t, unix.Close(fd))
	c, s := streamTo(t, ln)
	c.Close()
	s.Close()
	closing := make(chan error)
	other, err := (&ListenConfig{Control: setting(unix.SO_REUSEPORT, 1)}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	waits, err := (&ListenConfig{Control: setting(unix.SO_REUSEPORT, 1)}).Listen(t.Context(), "tcp", other.Addr().String())
	require.NoError(t, err)
	go func() { closing <- waits.Close() }() // ends although it waits for the name
	require.NoError(t, <-closing)
}
