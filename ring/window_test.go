package ring

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSendWindowOpensByGrants(t *testing.T) {
	var w SendWindow
	require.Zero(t, w.Avail())
	require.NoError(t, w.Init(100))
	w.Take(60)
	require.Equal(t, 40, w.Avail())
	require.EqualValues(t, 60, w.Sent())

	require.NoError(t, w.Grant(100), "nothing new")
	require.NoError(t, w.Grant(20), "stale")
	require.Equal(t, 40, w.Avail())
	require.NoError(t, w.Grant(160))
	require.Equal(t, 100, w.Avail())
	require.EqualValues(t, 160, w.Granted())

	w.Take(0)
	w.Take(100)
	require.Zero(t, w.Avail())
	require.Panics(t, func() { w.Take(1) })
	require.Panics(t, func() { w.Take(-1) })
}

func TestSendWindowRefusesImpossibleGrants(t *testing.T) {
	var w SendWindow
	require.ErrorIs(t, w.Init(MaxWindow+1), ErrSize)
	require.NoError(t, w.Init(MaxWindow))
	require.NoError(t, w.Init(10))
	w.Take(10)
	require.ErrorIs(t, w.Grant(10+MaxWindow+1), ErrCredit)
	require.ErrorIs(t, w.Grant(math.MaxUint64), ErrCredit)
	require.Zero(t, w.Avail())
	require.NoError(t, w.Grant(10+MaxWindow))
	require.Equal(t, MaxWindow, w.Avail())
}

func TestRecvWindowRefusesMoreThanGranted(t *testing.T) {
	var w RecvWindow
	require.ErrorIs(t, w.Arrive(1), ErrOverrun, "the zero window")
	require.NoError(t, w.Init(100))
	require.ErrorIs(t, w.Arrive(101), ErrOverrun)
	require.ErrorIs(t, w.Arrive(-1), ErrOverrun)
	require.ErrorIs(t, w.Arrive(math.MinInt), ErrOverrun)
	require.NoError(t, w.Arrive(100))
	require.NoError(t, w.Arrive(0))
	w.Consume(100)
	require.ErrorIs(t, w.Arrive(1), ErrOverrun, "consumed, but the sender was not told")
	w.TakeUpdate()
	require.NoError(t, w.Arrive(100))
	require.Panics(t, func() { w.Consume(101) })
	require.Panics(t, func() { w.Consume(-1) })
	require.EqualValues(t, 200, w.Arrived())
	require.EqualValues(t, 100, w.Consumed())
	require.Equal(t, 100, w.Buffered())
}

func TestUpdateIsDueAfterAQuarterOfTheWindow(t *testing.T) {
	for _, test := range []struct{ window, due int }{
		{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 2}, {100, 25}, {65536, 16384}, {MaxWindow, MaxWindow / 4},
	} {
		var w RecvWindow
		require.NoError(t, w.Init(uint32(test.window)))
		require.False(t, w.UpdateDue(), "nothing was consumed")
		require.NoError(t, w.Arrive(test.window))
		w.Consume(test.due - 1)
		require.False(t, w.UpdateDue())
		w.Consume(1)
		require.True(t, w.UpdateDue())
		require.EqualValues(t, test.window+test.due, w.TakeUpdate())
		require.False(t, w.UpdateDue())
	}
}

func TestWindowThatIsResizedNeverGoesBack(t *testing.T) {
	var w RecvWindow
	require.ErrorIs(t, w.Init(0), ErrSize)
	require.ErrorIs(t, w.Init(MaxWindow+1), ErrSize)
	require.NoError(t, w.Init(1000))
	require.ErrorIs(t, w.Resize(0), ErrSize)

	require.NoError(t, w.Resize(100))
	require.False(t, w.UpdateDue())
	require.EqualValues(t, 1000, w.TakeUpdate(), "what was granted stays granted")
	require.NoError(t, w.Arrive(1000))
	require.Zero(t, w.Untold(), "not even what was consumed, of a window that has shrunk")
	w.Consume(925)
	require.True(t, w.UpdateDue())
	require.Equal(t, 25, w.Untold())
	require.EqualValues(t, 1025, w.TakeUpdate())

	require.NoError(t, w.Resize(4000))
	require.True(t, w.UpdateDue(), "the window grew")
	require.EqualValues(t, 4925, w.TakeUpdate())
}
