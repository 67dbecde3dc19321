package link

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// With less memory to send from than the peer's ring has, less is under way, and all of it
// arrives.
func TestLittleMemoryMakesASmallBounceBuffer(t *testing.T) {
	const ringSize, frames, size = 1 << 20, 3000, MinPiece
	for _, device := range wireLike {
		t.Run(device, func(t *testing.T) {
			used, limit := verbs.PinnedBytes(), verbs.PinLimit()
			verbs.SetPinLimit(used + 2*ringSize + 3*MinRing + 40<<10)
			t.Cleanup(func() { verbs.SetPinLimit(limit) })
			from, to := pair(t, device, ringSize)
			for _, u := range []*user{from, to} {
				length := len(u.link.bounce.mr.Bytes())
				require.GreaterOrEqual(t, length, MinRing)
				require.Less(t, length, bounceSize)
			}
			sent := 0
			from.until("all frames", func() bool {
				if sent < frames && from.trySend(Header{}, payloadOf(sent, size)) {
					sent++
				}
				require.NoError(t, to.link.Poll().Err)
				return len(to.got) == frames
			})
			for i, a := range to.got {
				require.True(t, bytes.Equal(payloadOf(i, size), a.payload), "frame %d", i)
			}
		})
	}
}
