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

func TestPlaceFollowsTheRuleOfReserve(t *testing.T) {
	tx, rx := newTx(t, 4096), newRx(t, 4096)
	for i := range 10_000 {
		n := i*i%1500 + 1
		want, ok := tx.Reserve(n)
		require.True(t, ok)
		require.Equal(t, want, place1(t, rx, n))
		require.Equal(t, tx.Sent(), rx.Placed())
		require.NoError(t, tx.Credit(rx.TakeCredit()))
	}
}

func TestPlaceRefusesWhatThePeerHadNoCreditFor(t *testing.T) {
	for _, n := range []int{0, -1, math.MinInt, math.MaxInt, 4097} {
		rx := newRx(t, 4096)
		_, err := rx.Place(n)
		require.ErrorIs(t, err, ErrOverrun, "length %d", n)
		require.Zero(t, rx.Placed())
	}

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

func TestReleaseIsContiguousWhateverTheOrderOfFree(t *testing.T) {
	rx := newRx(t, 4096)
	var tokens [4]Token
	for i := range tokens {
		place1(t, rx, 256)
		tokens[i] = rx.Retain()
	}
	place1(t, rx, 256) // consumed at once
	require.Zero(t, rx.Released())
	require.Equal(t, 5*256, rx.Retained())

	rx.Free(tokens[2])
	rx.Free(tokens[1])
	require.Zero(t, rx.Released())
	oldest, ok := rx.Oldest()
	require.True(t, ok)
	require.Equal(t, tokens[0], oldest)

	rx.Free(tokens[0])
	require.EqualValues(t, 3*256, rx.Released())
	oldest, ok = rx.Oldest()
	require.True(t, ok)
	require.Equal(t, tokens[3], oldest)

	rx.Free(tokens[3])
	require.Equal(t, rx.Placed(), rx.Released())
	require.Zero(t, rx.Retained())
	_, ok = rx.Oldest()
	require.False(t, ok)
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

func TestSkippedEndIsReleasedWithWhatIsBeforeIt(t *testing.T) {
	rx := rxAt(t, 4096, 4000)
	require.Zero(t, place1(t, rx, 200))
	rx.Retain()
	require.EqualValues(t, 4096, rx.Released())
	require.EqualValues(t, 208, rx.Retained())
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
		if i%3 == 2 { // so that the list wraps before it grows
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
