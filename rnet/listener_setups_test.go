package rnet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
)

func TestSetUpsThatTakeTheirTimeGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := setUpPlaces{gate: fallback.NewGate(maxSetUps)}
		var contexts []context.Context
		var leave []func()
		for range maxSetUps + maxSlow + 1 {
			require.NoError(t, p.enter(t.Context()))
			ctx, left := p.begin(t.Context())
			contexts, leave = append(contexts, ctx), append(leave, left)
		}
		synctest.Wait() // the last came in with the first that had to give way
		require.Len(t, p.slow, maxSlow)
		require.Equal(t, 1, p.gate.Inside())
		ended := 0
		for _, ctx := range contexts {
			if ctx.Err() != nil {
				ended++
				require.ErrorIs(t, context.Cause(ctx), errGaveWay)
			}
		}
		require.Equal(t, maxSetUps, ended, "those that had no place and were over the limit")
		for _, ctx := range contexts[maxSetUps:] {
			require.NoError(t, ctx.Err(), "the oldest are those that end")
		}
		for _, left := range leave {
			left()
		}
		require.Zero(t, p.gate.Inside())
		require.Empty(t, p.slow)
	})
}

func TestQuickSetUpsKeepTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := setUpPlaces{gate: fallback.NewGate(1)}
		for range 3 {
			require.NoError(t, p.enter(t.Context()))
			ctx, leave := p.begin(t.Context())
			time.Sleep(placeTime / 2)
			require.Equal(t, 1, p.gate.Inside())
			require.NoError(t, ctx.Err())
			leave()
			require.Zero(t, p.gate.Inside())
		}
	})
}
