package ring

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func newRx(t testing.TB, size uint32) *Rx {
	t.Helper()
	rx := &Rx{}
	require.NoError(t, rx.Init(size))
	return rx
}

func rxAt(t testing.TB, size uint32, pos uint64) *Rx {
	rx := newRx(t, size)
	rx.placed, rx.last, rx.told = pos, pos, pos
	return rx
}

func place1(t testing.TB, rx *Rx, n int) uint32 {
	t.Helper()
	off, err := rx.Place(n)
	require.NoError(t, err)
	return off
}

func TestPlaceRefusesWhatThePeerHadNoCreditFor(t *testing.T) {
	for _, n := range []int{0, -1, math.MinInt, math.MaxInt, 4097} {
		rx := newRx(t, 4096)
		_, err := rx.Place(n)
		require.ErrorIs(t, err, ErrOverrun, "length %d", n)
		require.Zero(t, rx.Placed())
	}

	require.Zero(t, place1(t, newRx(t, 4096), 4096), "the whole ring")
	rx := newRx(t, 4096)
	place1(t, rx, 1024)
	rx.Retain()
	place1(t, rx, 2048)
	_, err := rx.Place(1025)
	require.ErrorIs(t, err, ErrOverrun, "into the retained message, by skipping the end")
	require.EqualValues(t, 3072, rx.Placed(), "nothing has changed")
	require.EqualValues(t, 3072, place1(t, rx, 1024))
	_, err = rx.Place(1)
	require.ErrorIs(t, err, ErrOverrun)
}

func TestSeveralRetentionsKeepOneMessage(t *testing.T) {
	rx := newRx(t, 4096)
	place1(t, rx, 64)
	a, b := rx.Retain(), rx.Retain()
	require.EqualValues(t, 1, a.Seq())
	require.EqualValues(t, 2, b.Seq())
	rx.Free(a)
	require.Zero(t, rx.Released())
	rx.Free(b)
	require.EqualValues(t, 64, rx.Released())
}

func TestMisuseOfRetentionPanics(t *testing.T) {
	rx := newRx(t, 4096)
	require.Panics(t, func() { rx.Retain() }, "nothing was placed")
	require.Panics(t, func() { rx.Free(Token{}) }, "nothing was retained")
	place1(t, rx, 16)
	a := rx.Retain()
	place1(t, rx, 16)
	b := rx.Retain()
	require.Panics(t, func() { rx.Free(Token{}) }, "the zero token")
	require.Panics(t, func() { rx.Free(Token{b.Seq() + 1}) }, "not given out yet")
	rx.Free(b)
	require.Panics(t, func() { rx.Free(b) }, "freed while an older one is kept")
	rx.Free(a)
	require.Panics(t, func() { rx.Free(a) }, "freed and gone")
	require.Panics(t, func() { rx.Free(Token{99}) }, "never given out")
	rx.TakeCredit()
	require.Panics(t, func() { rx.Retain() }, "the peer may overwrite it already")
}

func TestManyRetentionsGrowTheListInOrder(t *testing.T) {
	rx := newRx(t, 1<<20)
	var tokens []Token
	for i := range 5000 {
		place1(t, rx, 16)
		tokens = append(tokens, rx.Retain())
		if i%2 == 1 { // so that the list wraps before it grows
			rx.Free(tokens[0])
			tokens = tokens[1:]
		}
	}
	for i, token := range tokens {
		oldest, ok := rx.Oldest()
		require.True(t, ok)
		require.Equal(t, token, oldest)
		require.EqualValues(t, 16*(5000-len(tokens)+i), rx.Released())
		rx.Free(token)
	}
	require.Equal(t, rx.Placed(), rx.Released())
}

func TestCreditIsDueAfterAQuarter(t *testing.T) {
	rx := newRx(t, 4096)
	place1(t, rx, 1008)
	require.False(t, rx.CreditDue())
	require.Equal(t, 1008, rx.Untold())
	place1(t, rx, 16)
	require.True(t, rx.CreditDue())
	require.EqualValues(t, 1024, rx.TakeCredit())
	require.False(t, rx.CreditDue())
	require.Zero(t, rx.Untold())

	place1(t, rx, 1024)
	token := rx.Retain()
	place1(t, rx, 1024)
	require.False(t, rx.CreditDue(), "nothing was released")
	rx.Free(token)
	require.True(t, rx.CreditDue())

	require.ErrorIs(t, rx.SetCreditStep(8), ErrSize)
	require.ErrorIs(t, rx.SetCreditStep(1025), ErrSize)
	require.NoError(t, rx.SetCreditStep(1024))
	rx.TakeCredit()
	require.NoError(t, rx.SetCreditStep(16))
	place1(t, rx, 1)
	require.True(t, rx.CreditDue())
}

func TestSpillIsDueBeyondHalf(t *testing.T) {
	rx := newRx(t, 4096)
	place1(t, rx, 1024)
	token := rx.Retain()
	place1(t, rx, 1024)
	require.False(t, rx.SpillDue())
	place1(t, rx, 16)
	require.True(t, rx.SpillDue(), "what lies behind a retained message counts too")
	rx.Free(token)
	require.False(t, rx.SpillDue())
}

func TestRestartedRingBeginsAgainOnBothSides(t *testing.T) {
	var tx Tx
	var rx Rx
	require.NoError(t, tx.Init(MinSize))
	require.NoError(t, rx.Init(MinSize))
	move := func(n int) (off uint32) {
		off, ok := tx.Reserve(n)
		require.True(t, ok)
		at, err := rx.Place(n)
		require.NoError(t, err)
		require.Equal(t, off, at)
		return off
	}
	for lap := range 5 {
		require.Zero(t, move(100))
		require.EqualValues(t, 112, tx.Offset())
		require.EqualValues(t, 112, move(200+16*lap))
		require.False(t, tx.Restart(), "not released, as far as it knows")
		require.NoError(t, tx.Credit(rx.TakeCredit()))
		require.True(t, tx.Restart())
		require.NoError(t, rx.Restart())
	}
	// The end of the ring lies where the restart says.
	require.Zero(t, move(MinSize-64))
	require.Equal(t, 64, tx.Tail())
	require.NoError(t, tx.Credit(rx.TakeCredit()))
	require.Zero(t, move(65), "skips the end")

	token := rx.Retain()
	require.ErrorIs(t, rx.Restart(), ErrOverrun, "a message is still in the ring")
	rx.Free(token)
	require.NoError(t, rx.Restart())
}
