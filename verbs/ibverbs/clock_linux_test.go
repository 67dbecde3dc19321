//go:build amd64 || arm64

package ibverbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestTimesAreCountedFromACompletion(t *testing.T) {
	const hz, mask = 78125_000, 1<<40 - 1
	c := clock{hz: hz, mask: mask}
	_, err := c.at(5)
	require.ErrorIs(t, err, verbs.ErrInvalid, "there was no completion")
	base := time.Unix(1_700_000_000, 999_999_990)
	const ticks = mask - 100
	c.seen(ticks, uint64(base.UnixNano()))
	for name, test := range map[string]struct {
		ticks uint64
		after time.Duration
	}{
		"the completion":                   {ticks, 0},
		"later":                            {ticks + 5, 64},
		"earlier":                          {ticks - 5, -64},
		"later, when the clock went round": {ticks + 10*hz&mask, 10 * time.Second},
		"bits that the clock has not":      {1<<63 + ticks, 0},
		"an hour ago":                      {ticks - 3600*hz, -time.Hour},
	} {
		at, err := c.at(test.ticks & (1<<63 | mask))
		require.NoError(t, err, name)
		require.Equal(t, test.after, at.Sub(base), name)
	}
	for _, ticks := range []uint64{0, 1 << 39, mask, 1<<64 - 1} {
		_, err := c.at(ticks)
		require.NoError(t, err)
	}
}
