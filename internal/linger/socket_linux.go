// Package linger has a socket whose last close waits, for tests: whoever can send it to somebody
// can make that one wait.
package linger

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Socket returns a TCP socket whose last close waits for an hour, unless a signal comes, and a
// function that ends the wait, which the end of the test does too.
func Socket(t testing.TB) (fd int, end func()) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	port := ln.Addr().(*net.TCPAddr).Port
	require.NoError(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}))
	peer, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { peer.Close() })
	require.NoError(t, unix.SetNonblock(fd, true))
	for piece := make([]byte, 64<<10); ; {
		if _, err := unix.Write(fd, piece); err != nil {
			require.Equal(t, unix.EAGAIN, err)
			break
		}
	}
	require.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
	return fd, func() { peer.Close() }
}
