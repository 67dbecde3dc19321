package rnet

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestManySessionsComeAndGo sets up a session for each connection.
func TestManySessionsComeAndGo(t *testing.T) {
	leavesNothing(t)
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
