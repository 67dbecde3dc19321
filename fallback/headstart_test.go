package fallback

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHeadStartIsLongerWhereThereIsSomethingToWaitFor(t *testing.T) {
	for name, c := range map[string]struct {
		start time.Duration
		busy  int // times that it is
		want  time.Duration
	}{
		"nothing is heard": {time.Second, 0, time.Second},
		"at work at first": {time.Second, 3, 4 * time.Second},
		"at work for ever": {time.Second, 1000, patienceFactor * time.Second},
		"none":             {-1, 1000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				h := NewHeadStart(c.start)
				defer h.Stop()
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
