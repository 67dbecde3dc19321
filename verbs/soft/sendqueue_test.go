//go:build linux

package soft

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestSendQueueGivesUpWhatOnlyTheBeginningNeeded(t *testing.T) {
	var s sendQueue
	data := [][]byte{{0}}
	fill := func() {
		for id := range uint64(3 * shortQueue) {
			data[0][0] = byte(id)
			s.add(&verbs.SendWR{ID: id, Flags: verbs.SendInline, Inline: data}, 100)
		}
	}
	empty := func() {
		for id := range uint64(3 * shortQueue) {
			if wr := s.oldest().wr; wr.ID != id || wr.Inline[0][0] != byte(id) {
				t.Errorf("request %d is %+v", id, wr)
			}
			s.drop()
		}
	}
	fill()
	empty()
	require.Nil(t, s.ring)
	fill()
	empty()
	require.Zero(t, testing.AllocsPerRun(10, func() { fill(); empty() }), "a queue that is used again")
}

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
