package ring

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func newTx(t testing.TB, size uint32) *Tx {
	t.Helper()
	tx := &Tx{}
	require.NoError(t, tx.Init(size))
	return tx
}

// txAt is the twin of an empty ring that has got to pos.
func txAt(t testing.TB, size uint32, pos uint64) *Tx {
	tx := newTx(t, size)
	tx.sent, tx.acked = pos, pos
	return tx
}

func TestRingSizeIsAPowerOfTwoWithinLimits(t *testing.T) {
	for size, good := range map[uint32]bool{
		0: false, 1: false, 2048: false, 4095: false, 4096: true, 6144: false,
		65536: true, 1 << 30: true, 1<<30 + 1: false, 1 << 31: false, math.MaxUint32: false,
	} {
		var tx Tx
		var rx Rx
		if good {
			require.NoError(t, tx.Init(size))
			require.NoError(t, rx.Init(size))
			require.Equal(t, size, tx.Size())
			require.Equal(t, size, rx.Size())
			require.EqualValues(t, size, tx.Room())
		} else {
			require.ErrorIs(t, tx.Init(size), ErrSize)
			require.ErrorIs(t, rx.Init(size), ErrSize)
		}
	}
}

func TestZeroTxHasNoRoom(t *testing.T) {
	var tx Tx
	require.Zero(t, tx.Room())
	require.Zero(t, tx.Tail())
	_, ok := tx.Reserve(1)
	require.False(t, ok)
}

func TestReserve(t *testing.T) {
	for _, test := range []struct {
		name        string
		sent, acked uint64
		n           int
		off         uint32
		ok          bool
		after       uint64
	}{
		{"one byte takes one unit", 0, 0, 1, 0, true, 16},
		{"lengths are rounded up", 16, 0, 17, 16, true, 48},
		{"nothing", 0, 0, 0, 0, false, 0},
		{"a negative length", 0, 0, -1, 0, false, 0},
		{"the smallest int", 0, 0, math.MinInt, 0, false, 0},
		{"the largest int", 0, 0, math.MaxInt, 0, false, 0},
		{"the whole ring", 4096, 4096, 4096, 0, true, 8192},
		{"more than the ring", 0, 0, 4097, 0, false, 0},
		{"the whole ring when some is taken", 16, 0, 4096, 0, false, 16},
		{"up to the end", 4080, 0, 16, 4080, true, 4096},
		{"skips the end", 4080, 4080, 17, 0, true, 4096 + 32},
		{"skips what is free", 4080, 32, 32, 0, true, 4096 + 32},
		{"has no room after skipping", 4080, 16, 32, 0, false, 4080},
		{"never fits across the middle", 2048, 2048, 2064, 0, false, 2048},
		{"full", 4096, 0, 1, 0, false, 4096},
		{"beyond 32 bits", 1<<32 - 16, 1<<32 - 16, 32, 0, true, 1<<32 + 32},
	} {
		t.Run(test.name, func(t *testing.T) {
			tx := newTx(t, 4096)
			tx.sent, tx.acked = test.sent, test.acked
			off, ok := tx.Reserve(test.n)
			require.Equal(t, test.ok, ok)
			require.Equal(t, test.off, off)
			require.Equal(t, test.after, tx.Sent())
			require.Equal(t, test.acked, tx.Acked())
		})
	}
}

func TestCredit(t *testing.T) {
	const base = 3<<32 + 1024 // beyond what 32 bits hold
	for _, test := range []struct {
		name  string
		pos   uint64
		after uint64
		err   error
	}{
		{"some", base + 64, base + 64, nil},
		{"all", base + 512, base + 512, nil},
		{"none", base, base, nil},
		{"a stale one", base - 4096, base, nil},
		{"a very old one", base - 1<<31, base, nil},
		{"one for what was not sent", base + 528, base, ErrCredit},
		{"one for far more", base + 1<<31 - 16, base, ErrCredit},
		{"one between messages", base + 8, base, ErrCredit},
	} {
		t.Run(test.name, func(t *testing.T) {
			tx := txAt(t, 4096, base)
			_, ok := tx.Reserve(512)
			require.True(t, ok)
			narrow := *tx
			require.ErrorIs(t, tx.Credit(test.pos), test.err)
			require.Equal(t, test.after, tx.Acked())
			require.ErrorIs(t, narrow.Credit32(uint32(test.pos)), test.err)
			require.Equal(t, test.after, narrow.Acked())
		})
	}
}
