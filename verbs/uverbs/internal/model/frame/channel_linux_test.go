//go:build amd64 || arm64

package frame

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A CQ outlives its channel's descriptor in the program, whose number then becomes another
// channel's: an event of that CQ is nobody's, and must not reach who has the number now.
func TestEventsOfAClosedChannelAreDropped(t *testing.T) {
	old, err := NewChannel()
	require.NoError(t, err)
	ours := old.ours
	old.Close()
	next, err := NewChannel()
	require.NoError(t, err)
	defer next.Close()
	require.Contains(t, []int{next.ours, next.program}, ours, "the number is in use again")

	require.True(t, old.Send([]byte("late")))
	require.Zero(t, old.Remove(func([]byte) bool { return true }))
	old.End()
	old.Close()
	for _, fd := range []int{next.ours, next.program} {
		_, _, err = unix.Recvfrom(fd, make([]byte, 8), unix.MSG_DONTWAIT)
		require.ErrorIs(t, err, unix.EAGAIN)
	}

	for next.Send(make([]byte, 8)) {
	}
	next.End()
	require.True(t, next.Send(make([]byte, 8)))
}
