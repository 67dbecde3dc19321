package mux

import (
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// The peer gives no credit for a while: when it does, the FINs have to go out, though nobody of ours waits for
// anything.
func TestACloseThatFindsNoRoomArmsForTheCredit(t *testing.T) {
	dialed, accepted := overNarrow.pair(t)
	streams := make([]*Stream, 4000)
	for i := range streams {
		streams[i], _ = open(t, dialed, accepted)
	}
	c, s := open(t, dialed, accepted)
	hang.Eventually(t, "a queue that nobody looks after", func() bool {
		_, err := s.Write([]byte{1})
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
		return dialed.pollLock.Unattended()
	})
	require.NoError(t, s.Close(-1))
	require.NoError(t, c.Close(-1))
	goOn := stopPolling(t, accepted.Mux)
	for _, c := range streams {
		require.NoError(t, c.Close(-1))
	}
	require.True(t, dialed.out.blocked.Load(), "all FINs had room")
	require.False(t, dialed.pollLock.Unattended())
	goOn()
	hang.Eventually(t, "the ends of the streams", func() bool { return dialed.Len() == 0 && accepted.Len() == 0 })
}

// Whoever closes while a Read is under way knows what that will take, and that the rest is lost: the peer
// gets a reset.
func TestACloseBesideAReadDoesNotSayThatAllWasRead(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	data := make([]byte, 48<<10) // stays in the ring, from which it is copied without a lock
	for range 2000 {
		c, s := open(t, dialed, accepted)
		_, err := c.Write(data)
		require.NoError(t, err)
		var n int
		read := hang.Start(t, func() { n, _ = s.Read(make([]byte, len(data)-1)) }) // ended by the data, or Close
		for range rand.IntN(30000) {
			runtime.KeepAlive(data)
		}
		require.NoError(t, s.Close(-1))
		read()
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "%d of %d bytes were read", n, len(data))
		require.NoError(t, c.Close(-1))
	}
}
