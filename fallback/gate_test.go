package fallback

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGateLetsItsLimitThrough(t *testing.T) {
	g := NewGate(2)
	require.True(t, g.TryEnter())
	require.True(t, g.TryEnter())
	require.False(t, g.TryEnter())
	require.Equal(t, 2, g.Inside())
	g.Leave()
	require.True(t, g.TryEnter())
	g.Leave()
	g.Leave()
	require.Panics(t, g.Leave)
}

func TestGateOfZeroIsAlwaysFull(t *testing.T) {
	require.False(t, NewGate(0).TryEnter())
	require.False(t, NewGate(-1).TryEnter())
}

func TestGateHoldsItsLimitAgainstMany(t *testing.T) {
	const limit = 3
	g := NewGate(limit)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if g.TryEnter() {
					if n := g.Inside(); n < 1 || n > limit {
						t.Errorf("%d inside", n)
					}
					g.Leave()
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, g.Inside())
}
