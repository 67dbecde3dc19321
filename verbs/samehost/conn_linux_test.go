package samehost

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The kernel looks for a packet first, and then whether the peer has hung up: what the
// peer says last, in between, must not be taken for its end.
func TestWhatAPeerSaysLastIsReceived(t *testing.T) {
	var b [8]byte
	for range 5000 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		file := os.NewFile(uintptr(fds[0]), "socket")
		raw, err := file.SyscallConn()
		require.NoError(t, err)
		go func() {
			unix.SendmsgN(fds[1], []byte("last"), nil, nil, unix.MSG_DONTWAIT)
			unix.Shutdown(fds[1], unix.SHUT_RDWR)
			unix.Close(fds[1])
		}()
		n, _, err := Receive(raw, b[:])
		require.NoError(t, err)
		require.Equal(t, "last", string(b[:n]))
		file.Close()
	}
}
