package ring

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlotsComeBackAsThePeerPosts(t *testing.T) {
	var send SendSlots
	var recv RecvSlots
	require.Zero(t, send.Avail())
	require.NoError(t, send.Init(8))
	require.NoError(t, recv.Init(8))

	for round := range uint64(20_000) { // far beyond 16 bits
		send.Take()
		send.Take()
		require.Equal(t, 6, send.Avail())
		recv.Post(1)
		require.False(t, recv.CreditDue())
		recv.Post(1)
		require.True(t, recv.CreditDue(), "a quarter")
		require.Equal(t, 2, recv.Untold())
		posted := recv.TakeCredit()
		require.Equal(t, posted, recv.Posted())
		require.NoError(t, send.Credit16(uint16(posted)))
		require.Equal(t, 8, send.Avail())
		require.Equal(t, 2*round+2, send.Sent())
		require.NoError(t, send.Credit16(uint16(posted-8)), "stale")
		require.Equal(t, 8, send.Avail())
	}
}

func TestSlotsRefuseImpossibleCounts(t *testing.T) {
	for depth, good := range map[int]bool{
		math.MinInt: false, -1: false, 0: false, 1: true, MaxSlots: true, MaxSlots + 1: false, math.MaxInt: false,
	} {
		var send SendSlots
		var recv RecvSlots
		if good {
			require.NoError(t, send.Init(depth))
			require.NoError(t, recv.Init(depth))
		} else {
			require.ErrorIs(t, send.Init(depth), ErrSize)
			require.ErrorIs(t, recv.Init(depth), ErrSize)
		}
	}

	var send SendSlots
	require.NoError(t, send.Init(4))
	require.ErrorIs(t, send.Credit16(5), ErrCredit, "nothing was used up")
	send.Take()
	require.NoError(t, send.Credit16(5))
	require.ErrorIs(t, send.Credit(math.MaxUint64), ErrCredit)
	require.ErrorIs(t, send.Credit16(1<<15), ErrCredit)
	require.NoError(t, send.Credit(4), "stale")
	require.Equal(t, 4, send.Avail())

	var one RecvSlots
	require.NoError(t, one.Init(1))
	one.Post(1)
	require.True(t, one.CreditDue(), "a quarter, but at least one")
}

func TestTakeWithoutASlotPanics(t *testing.T) {
	var send SendSlots
	require.NoError(t, send.Init(1))
	send.Take()
	require.Panics(t, send.Take)
}
