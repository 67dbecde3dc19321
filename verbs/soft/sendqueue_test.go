//go:build linux

package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSilenceCountsOnlyTimeInWhichThisProcessRan(t *testing.T) {
	const budget = silenceSteps * time.Second
	now := time.Now()
	var s silence
	require.Equal(t, time.Second, s.left(now, budget))
	require.Equal(t, time.Second, s.left(now, budget), "asked twice")
	now = now.Add(time.Second / 4)
	require.Equal(t, 3*time.Second/4, s.left(now, budget))
	now = now.Add(time.Hour)
	require.Equal(t, time.Second, s.left(now, budget), "an hour is a step")
	for range silenceSteps - 2 {
		now = now.Add(time.Second)
		require.Equal(t, time.Second, s.left(now, budget))
	}
	now = now.Add(time.Second)
	require.Zero(t, s.left(now, budget))
}
