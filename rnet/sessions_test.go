package rnet

import (
	"io"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/stretchr/testify/require"
)

// TestManySessionsComeAndGo sets up a session for each connection.
func TestManySessionsComeAndGo(t *testing.T) {
	leak.Check(t)
	over(t, softCarriers, func(t *testing.T, k carrier) {
		k.dedicated = true
		ln := k.listen(t)
		for i := range 100 {
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
