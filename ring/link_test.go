package ring

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func goodConfig() LinkConfig {
	return LinkConfig{TxSize: 65536, RxSize: 65536, SendDepth: 64, RecvDepth: 64, CreditLen: 32}
}

func newLinks(t testing.TB, c LinkConfig) (a, b *Link) {
	t.Helper()
	a, b = &Link{}, &Link{}
	require.NoError(t, a.Init(c))
	c.TxSize, c.RxSize, c.SendDepth, c.RecvDepth = c.RxSize, c.TxSize, c.RecvDepth, c.SendDepth
	require.NoError(t, b.Init(c))
	return a, b
}

// deliver lets to receive a message of n bytes that from claimed.
func deliver(t testing.TB, from, to *Link, n int) {
	t.Helper()
	stamp := from.Stamp()
	_, err := to.Rx.Place(n)
	require.NoError(t, err)
	to.RecvSlots.Post(1)
	require.NoError(t, to.Apply(stamp))
}

func TestLinkRefusesSizesOutOfRange(t *testing.T) {
	for name, edit := range map[string]func(c *LinkConfig){
		"sending ring":         func(c *LinkConfig) { c.TxSize = 1000 },
		"receiving ring":       func(c *LinkConfig) { c.RxSize = 0 },
		"few receives there":   func(c *LinkConfig) { c.SendDepth = MinDepth - 1 },
		"few receives here":    func(c *LinkConfig) { c.RecvDepth = -1 },
		"many receives there":  func(c *LinkConfig) { c.SendDepth = MaxSlots + 1 },
		"many receives here":   func(c *LinkConfig) { c.RecvDepth = MaxSlots + 1 },
		"no credit message":    func(c *LinkConfig) { c.CreditLen = 0 },
		"large credit message": func(c *LinkConfig) { c.CreditLen = MaxCreditLen + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := goodConfig()
			edit(&c)
			require.ErrorIs(t, new(Link).Init(c), ErrSize)
		})
	}
}

func TestReserveIsLeftForCredit(t *testing.T) {
	for _, n := range []int{16, 100, 8000} { // until slots, slots, bytes run out
		a, _ := newLinks(t, goodConfig())
		for a.Room() >= n {
			_, ok := a.Send(n)
			require.True(t, ok)
		}
		_, ok := a.Send(n)
		require.False(t, ok)
		for a.Room() > 0 { // fill it up with what is left
			_, ok := a.Send(a.Room())
			require.True(t, ok)
		}
		for i := range CreditReserve {
			_, ok := a.SendCredit()
			require.True(t, ok, "credit message %d after messages of %d", i, n)
		}
	}
}

func TestSendRefusesImpossibleLengths(t *testing.T) {
	a, _ := newLinks(t, goodConfig())
	for _, n := range []int{0, -1, 65537} {
		_, ok := a.Send(n)
		require.False(t, ok)
	}
	require.Equal(t, 64, a.SendSlots.Avail())
}

func TestTailOfALinkLeavesTheReserveToo(t *testing.T) {
	a, _ := newLinks(t, goodConfig())
	require.Equal(t, a.Room(), a.Tail())
	a.Tx.sent, a.Tx.acked = 65536-160, 65536-160
	require.Equal(t, 160, a.Tail())
	require.Greater(t, a.Room(), a.Tail())
}

// The largest message that is promised to go through does so at every offset,
// when the peer is as unhelpful as it may be: it retains a half and has not told
// of the last quarter.
func TestLongestMessageFindsRoomAtEveryOffset(t *testing.T) {
	for size := uint32(MinSize); size <= 65536; size *= 2 {
		c := goodConfig()
		c.TxSize, c.CreditLen = size, MaxCreditLen
		a, _ := newLinks(t, c)
		n := a.MaxMessage()
		require.Greater(t, n, 0)
		taken := uint64(size/2 + size/4 - Align)
		for pos := uint64(size); pos < uint64(2*size); pos += Align {
			a.Tx.sent, a.Tx.acked = pos, pos-taken
			require.GreaterOrEqual(t, a.Room(), n, "ring %d at %d", size, pos)
		}
	}
}

func TestStampsCarryCreditBothWays(t *testing.T) {
	a, b := newLinks(t, goodConfig())
	const n = 4096
	for range 4 {
		_, ok := a.Send(n)
		require.True(t, ok)
		deliver(t, a, b, n)
	}
	require.True(t, b.CreditDue(), "a quarter of the ring")
	require.EqualValues(t, 0, a.Tx.Acked())

	_, ok := b.SendCredit()
	require.True(t, ok)
	deliver(t, b, a, 32)
	require.False(t, b.CreditDue())
	require.EqualValues(t, 4*n, a.Tx.Acked())
	require.Equal(t, 64, a.SendSlots.Avail())

	require.False(t, a.CreditDue(), "a credit message alone does not call for one back")
}

func TestCreditIsDueForSlotsAlone(t *testing.T) {
	a, b := newLinks(t, goodConfig())
	for range 16 {
		require.False(t, b.CreditDue())
		_, ok := a.Send(16)
		require.True(t, ok)
		deliver(t, a, b, 16)
	}
	require.True(t, b.CreditDue())
}

func TestApplyRefusesLies(t *testing.T) {
	a, _ := newLinks(t, goodConfig())
	require.ErrorIs(t, a.Apply(Credit{Released: 16, Posted: 64}), ErrCredit)
	require.ErrorIs(t, a.Apply(Credit{Released: 0, Posted: 65}), ErrCredit)
	require.NoError(t, a.Apply(Credit{Released: 0, Posted: 64}))
}

// Two credit messages for each other must not go back and forth for ever.
func TestCreditMessagesComeToRest(t *testing.T) {
	c := goodConfig()
	c.TxSize, c.RxSize, c.SendDepth, c.RecvDepth, c.CreditLen = MinSize, MinSize, MinDepth, MinDepth, MaxCreditLen
	a, b := newLinks(t, c)
	for range 6 {
		_, ok := a.Send(256)
		require.True(t, ok)
		deliver(t, a, b, 256)
	}
	messages := 0
	for a.CreditDue() || b.CreditDue() {
		if b.CreditDue() {
			a, b = b, a
		}
		_, ok := a.SendCredit()
		require.True(t, ok)
		deliver(t, a, b, MaxCreditLen)
		messages++
		require.Less(t, messages, 10)
	}
}
