package mux

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Write that is a frame, and one that is longer, go different ways.
func TestAWriteThatFindsTheLinkStoppedTellsTheReset(t *testing.T) {
	for _, size := range []int{1, 1 << 20} {
		dialed, accepted := overSoft.pair(t)
		c, _ := open(t, dialed, accepted)
		dialed.out.mu.Lock()
		dialed.link.Stop()
		dialed.out.mu.Unlock()
		_, err := c.Write(make([]byte, size))
		require.Equal(t, syscall.ECONNRESET, err, "%d bytes", size)
		_, err = c.Write(make([]byte, size))
		require.Equal(t, syscall.EPIPE, err, "%d bytes", size)
	}
}
