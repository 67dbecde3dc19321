package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFloorWhoseServerIsGoneComesToAnEnd(t *testing.T) {
	for _, k := range []kind{cacheLine, bareRing} {
		w := workload{Kind: k, Size: 1 << 20, Conns: 1}
		s, err := makeFloor(w) // and nobody serves
		require.NoError(t, err)
		c, err := joinFloor(w, s.addr())
		require.NoError(t, err)
		s.memory.head.Store(1) // of a round before
		require.Zero(t, c.(*floorClient).work(-2*patience))
		require.Contains(t, c.(*floorClient).failed().Failure, "does not answer", k)
	}
}
