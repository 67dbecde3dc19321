package rnet

import (
	"crypto/sha256"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// TestLittleStagingMemoryLimitsWhatIsUnderWay leaves the sessions less memory
// to send from than the peer's ring has.
func TestLittleStagingMemoryLimitsWhatIsUnderWay(t *testing.T) {
	over(t, []carrier{overStage, overNotices}, func(t *testing.T, k carrier) {
		awaitNoSessions(t)
		used, limit := verbs.PinnedBytes(), verbs.PinLimit()
		verbs.SetPinLimit(used + 2*defaultRingSize + 3*minRingSize + 40<<10)
		t.Cleanup(func() { verbs.SetPinLimit(limit) })
		d, a := k.streams(t)
		for _, c := range []*Conn{d, a} {
			staged := len(c.s.stage.mr.Bytes())
			require.GreaterOrEqual(t, staged, minRingSize)
			require.Less(t, staged, stageSize)
		}
		payload := randomBytes(1, 5<<20+77)
		go func() {
			d.Write(payload)
			d.Close()
		}()
		got := sha256.New()
		n, err := io.Copy(got, a)
		require.NoError(t, err)
		require.EqualValues(t, len(payload), n)
		want := sha256.Sum256(payload)
		require.Equal(t, want[:], got.Sum(nil))
	})
}
