//go:build amd64 || arm64

package mlx5

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

func TestWallTimeIsThatOfTheKernelsPage(t *testing.T) {
	c := &context{clock: make([]byte, pageSize)}
	info := abi.ViewAt[clockInfo](c.clock, 0)
	const mask = 1<<48 - 1
	info.nsec.Store(1_000_000)
	info.mult.Store(64 << 4) // 64 ns a tick
	info.shift.Store(4)
	info.mask.Store(mask)
	for _, test := range []struct{ cycles, ticks, want uint64 }{
		{100, 100, 1_000_000},
		{100, 105, 1_000_000 + 5*64},
		{100, 95, 1_000_000 - 5*64},
		{mask - 1, 3, 1_000_000 + 5*64}, // gone round
		{3, mask - 1, 1_000_000 - 5*64},
		{0, 1 << 46, 1_000_000 + 64<<46}, // more than 64 bits before the shift
	} {
		info.cycles.Store(test.cycles)
		at, err := c.WallTime(test.ticks)
		require.NoError(t, err)
		require.Equal(t, time.Unix(0, int64(test.want)), at, "%+v", test)
	}
	info.sign.Store(3) // being written
	_, err := c.WallTime(0)
	require.ErrorIs(t, err, verbs.ErrBusy)
}
