package rnet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// Those that wait for their peers hold up nobody until there are most of them, and then
// no longer than silentTime.
func TestSetUpsThatWaitForTheirPeersGiveWay(t *testing.T) {
	const most = 3
	synctest.Test(t, func(t *testing.T) {
		all := acceptances{work: fallback.NewGate(1), most: func() int { return most }}
		var waiting []*acceptance
		var contexts []context.Context
		begin := func() {
			require.NoError(t, all.enter(t.Context()))
			ctx, a := all.begin(t.Context())
			contexts, waiting = append(contexts, ctx), append(waiting, a)
			a.waits()
		}
		begun := time.Now()
		for range most {
			begin()
		}
		require.Zero(t, time.Since(begun))

		time.AfterFunc(silentTime/2, waiting[1].answered)
		begin()
		require.Equal(t, silentTime/2, time.Since(begun), "one was over")
		begin()
		require.Equal(t, silentTime, time.Since(begun), "the first has said nothing for that long")
		begin()
		require.Equal(t, silentTime, time.Since(begun), "and so has another")
		for i, ctx := range contexts {
			if i == 0 || i == 2 {
				require.ErrorIs(t, context.Cause(ctx), errGaveWay)
			} else {
				require.NoError(t, ctx.Err())
			}
		}
		for _, a := range waiting[:3] {
			a.leave()
		}
		require.Len(t, all.waiting, most)

		ctx, cancel := context.WithTimeout(t.Context(), silentTime/4)
		defer cancel()
		require.ErrorIs(t, all.enter(ctx), context.DeadlineExceeded)
		for _, a := range waiting[3:] {
			a.leave()
		}
		begin()
		waiting[len(waiting)-1].leave()
		require.Zero(t, all.work.Inside())
		require.Empty(t, all.waiting)
	})
}

// Who is at work keeps its place, however long that takes.
func TestSetUpsAtWorkDoNotGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := acceptances{work: fallback.NewGate(1), most: func() int { return 1 }}
		require.NoError(t, all.enter(t.Context()))
		ctx, a := all.begin(t.Context())
		late, cancel := context.WithTimeout(t.Context(), 2*silentTime)
		defer cancel()
		require.ErrorIs(t, all.enter(late), context.DeadlineExceeded)
		require.NoError(t, ctx.Err())
		a.leave()
		require.Zero(t, all.work.Inside())
	})
}
