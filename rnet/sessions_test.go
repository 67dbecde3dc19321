package rnet

import (
	"io"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// TestManySessionsComeAndGo sets up a session for each connection.
func TestManySessionsComeAndGo(t *testing.T) {
	leak.Check(t)
	over(t, softCarriers, func(t *testing.T, k carrier) {
		k.dedicated = true
		ln := k.listen(t)
		for i := range orRaced(100, 30) {
			dialed, accepted := k.connect(t, ln)
			_, err := dialed.Write([]byte("request"))
			require.NoError(t, err)
			require.NoError(t, dialed.Close())
			got, err := io.ReadAll(accepted)
			require.NoError(t, err, "session %d", i)
			require.Equal(t, "request", string(got))
			require.NoError(t, accepted.Close())
		}
	})
}

// awaitNoSessions waits until those of earlier tests have ended, by going idle,
// and given back what they had.
func awaitNoSessions(t testing.TB) {
	t.Helper()
	hang.Eventually(t, "no session is left", func() bool {
		devices.mu.Lock()
		defer devices.mu.Unlock()
		return len(liveSessions.list()) == 0 && len(devices.open) == 0
	})
}

// smallSession is a carrier whose sessions may hold little.
var smallSession = carrier{name: "soft-small-session", transport: Soft, limits: Limits{SessionWindow: mux.MinSessionWindow}}

// unread returns the bytes that each stream of the session holds, and all together.
func unread(s *session) (bytes []int, sum int) {
	for _, st := range s.mux.SomeStreams(s.mux.Len()) {
		n := st.Stats().Unread
		bytes, sum = append(bytes, n), sum+n
	}
	return bytes, sum
}

func TestStreamsThatNobodyReadsHoldNoMoreThanTheSessionWindow(t *testing.T) {
	const streams = 50
	ln := smallSession.listen(t)
	var held *session
	for range streams {
		c, s := smallSession.connect(t, ln)
		go c.Write(make([]byte, settings.DefaultWindow)) // ends with the test
		held = s.(*Conn).s
	}
	// All that may come has come when each stream has its minimum.
	hang.Eventually(t, "the writers stand still", func() bool {
		each, _ := unread(held)
		return slices.Min(each) >= mux.StreamMinimum
	})
	_, sum := unread(held)
	require.LessOrEqual(t, sum, mux.MinSessionWindow+streams*mux.StreamMinimum)

	// A stream that is read goes on beside them, both ways, and so does one that
	// is opened now.
	for range 2 {
		c, s := smallSession.connect(t, ln)
		require.Same(t, held, s.(*Conn).s)
		const size = 1 << 20
		for i, ends := range [][2]net.Conn{{c, s}, {s, c}} {
			sent := hang.Start(t, func() { assert.NoError(t, traffic.Write(ends[0], traffic.NewRand(1), uint64(i), size, 64<<10)) })
			require.NoError(t, traffic.Read(ends[1], traffic.NewRand(2), uint64(i), size, 64<<10))
			sent()
		}
	}
	_, sum = unread(held)
	require.LessOrEqual(t, sum, mux.MinSessionWindow+(streams+2)*mux.StreamMinimum)
}
