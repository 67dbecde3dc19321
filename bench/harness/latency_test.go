package harness

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMergedHistogramHoldsWhatEachRecorderTook(t *testing.T) {
	for _, conns := range []int{1, 2, ownRecorders, ownRecorders + 1, 1000} {
		recorders := newRecorders(conns)
		require.Len(t, recorders, conns)
		var all sync.WaitGroup
		for i, r := range recorders {
			all.Go(func() {
				for k := range 10 {
					r.record(time.Duration(i*10+k) * time.Microsecond)
				}
			})
		}
		all.Wait()
		encoded, err := mergeRecorders(recorders)
		require.NoError(t, err)
		h, err := decodeLatency(encoded)
		require.NoError(t, err)

		n := int64(conns * 10)
		require.Equal(t, n, h.TotalCount())
		for _, q := range []float64{50, 99, 100} {
			want := float64(n-1) * q / 100 * float64(time.Microsecond)
			require.InDelta(t, want, h.ValueAtQuantile(q), want/500+float64(time.Microsecond), "%d connections, %v%%", conns, q)
		}
	}
}

func TestRecorderKeepsLatenciesBeyondItsRange(t *testing.T) {
	recorders := newRecorders(1)
	recorders[0].record(-time.Second)
	recorders[0].record(time.Hour)
	encoded, err := mergeRecorders(recorders)
	require.NoError(t, err)
	h, err := decodeLatency(encoded)
	require.NoError(t, err)
	require.EqualValues(t, 2, h.TotalCount())
	require.InEpsilon(t, longestLatency, h.Max(), 0.001)
}

func TestResetForgetsTheWarmUp(t *testing.T) {
	recorders := newRecorders(100)
	for _, r := range recorders {
		r.record(time.Second)
	}
	resetRecorders(recorders)
	encoded, err := mergeRecorders(recorders)
	require.NoError(t, err)
	h, err := decodeLatency(encoded)
	require.NoError(t, err)
	require.Zero(t, h.TotalCount())
}

func TestDecodeRefusesWhatIsNoHistogram(t *testing.T) {
	_, err := decodeLatency([]byte("no histogram"))
	require.ErrorContains(t, err, "decode histogram")
}

func TestRecordAllocatesNothing(t *testing.T) {
	for _, conns := range []int{1, 1000} {
		r := newRecorders(conns)[0]
		require.Zero(t, testing.AllocsPerRun(1000, func() { r.record(time.Microsecond) }))
	}
}
