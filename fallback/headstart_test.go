package fallback

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHeadStartBeginsWithTheSetUp(t *testing.T) {
	for name, c := range map[string]struct {
		start, spent time.Duration
		busy         bool
		want         time.Duration
	}{
		"a part is over":             {time.Second, time.Second / 4, false, 3 * time.Second / 4},
		"it is over":                 {time.Second, 3 * time.Second, false, 0},
		"a part is over, at work":    {time.Second, time.Second / 4, true, patienceFactor*time.Second - time.Second/4},
		"it is over, at work":        {time.Second, 3 * time.Second, true, 6 * time.Second},
		"all patience is over":       {time.Second, time.Hour, true, 0},
		"none, and none is left":     {-1, time.Hour, true, 0},
		"the set-up has just begun":  {time.Second, 0, false, time.Second},
		"the clock was set backward": {time.Second, -time.Hour, false, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				h := NewHeadStart(c.start)
				defer h.Stop()
				h.Spend(c.spent)
				<-h.Over()
				for h.GoOn(c.busy) {
					<-h.Over()
				}
				require.Equal(t, c.want, time.Since(begun))
			})
		})
	}
}

func TestHeadStartDoesNotCountWhatIsExcused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		h := NewHeadStart(time.Second)
		defer h.Stop()
		for {
			<-h.Over()
			h.Excuse()
			if !h.GoOn(true) {
				break
			}
		}
		require.Equal(t, (patienceFactor*patienceFactor+patienceFactor)*time.Second, time.Since(begun), "not for ever")
		h.Excuse()
		<-h.Over()
		require.False(t, h.GoOn(true), "over is over")
	})
}

func TestHeadStartIsLongerWhereThereIsSomethingToWaitFor(t *testing.T) {
	for name, c := range map[string]struct {
		start time.Duration
		busy  int // times that it is
		end   time.Duration
		want  time.Duration
	}{
		"nothing arrives":  {time.Second, 0, 0, time.Second},
		"at work at first": {time.Second, 3, 0, 4 * time.Second},
		"at work for ever": {time.Second, 1000, 0, patienceFactor * time.Second},
		"none":             {-1, 1000, 0, 0},
		"an end at first":  {time.Second, 1000, time.Second / 2, time.Second / 2},
		"an end later":     {time.Second, 1000, 5 * time.Second / 2, 5 * time.Second / 2},
		"a late end":       {time.Second, 1, time.Hour, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				h := NewHeadStart(c.start)
				defer h.Stop()
				if c.end > 0 {
					h.EndBy(begun.Add(c.end))
				}
				for asked := 0; ; asked++ {
					<-h.Over()
					if !h.GoOn(asked < c.busy) {
						break
					}
				}
				require.Equal(t, c.want, time.Since(begun))
				<-h.Over()
				require.False(t, h.GoOn(true), "over is over")
				require.Equal(t, c.want, time.Since(begun))
				require.ErrorIs(t, h.Err(), ErrTooSlow)
				require.Equal(t, HandshakeTimeout, Classify(h.Err()))
			})
		})
	}
}
