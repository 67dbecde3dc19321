package samehost

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestIsUnix(t *testing.T) {
	for _, c := range []struct {
		domain, typ int
		want        bool
	}{
		{unix.AF_UNIX, unix.SOCK_STREAM, true},
		{unix.AF_UNIX, unix.SOCK_SEQPACKET, false},
		{unix.AF_INET, unix.SOCK_STREAM, false},
	} {
		fd, err := unix.Socket(c.domain, c.typ|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.Equal(t, c.want, IsUnix(fd, unix.SOCK_STREAM), "%+v", c)
		unix.Close(fd)
	}
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	require.False(t, IsUnix(pipe[0], unix.SOCK_STREAM))
	unix.Close(pipe[0])
	unix.Close(pipe[1])
}
