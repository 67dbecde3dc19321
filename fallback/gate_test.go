package fallback

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestGateServesInTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1)
		require.NoError(t, g.Enter(t.Context()))
		var order []int
		for i := range 4 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if g.Enter(ctx) == nil {
					order = append(order, i) // the gate lets one in at a time
					g.Leave()
				}
			}()
			synctest.Wait()
			if i == 1 {
				cancel() // who has given up is passed over
				synctest.Wait()
			} else {
				defer cancel()
			}
		}
		require.Empty(t, order)
		require.Equal(t, 1, g.Inside())
		g.Leave()
		synctest.Wait()
		require.Equal(t, []int{0, 2, 3}, order)
		require.Zero(t, g.Inside())
		require.Panics(t, g.Leave)
	})
}

func TestGateHoldsItsLimitAgainstMany(t *testing.T) {
	const limit = 3
	g := NewGate(limit)
	var wg sync.WaitGroup
	var inside atomic.Int32
	for i := range 8 {
		wg.Go(func() {
			for round := range 2000 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+round)%5 == 0 {
					cancel() // leaves the queue, or the gate
				}
				if g.Enter(ctx) == nil {
					if n := inside.Add(1); n > limit {
						t.Errorf("%d inside", n)
					}
					inside.Add(-1)
					g.Leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Zero(t, g.Inside())
}
