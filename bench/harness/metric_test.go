package harness

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFiguresHaveThreeDigitsAndAUnit(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{formatNanos(0), "0 us"},
		{formatNanos(670), "0.67 us"},
		{formatNanos(9994), "9.99 us"},
		{formatNanos(9996), "10.0 us"},
		{formatNanos(46123), "46.1 us"},
		{formatNanos(99960), "100 us"},
		{formatNanos(999600), "1.00 ms"},
		{formatNanos(2.5e9), "2.50 s"},
		{formatRate(12), "12.0 /s"},
		{formatRate(225400), "225 k/s"},
		{formatRate(1.3e6), "1.30 M/s"},
		{formatThroughput(5.34e9), "5.34 GB/s"},
		{formatThroughput(12e6), "12.0 MB/s"},
		{formatBytes(512), "512 B"},
		{formatBytes(-300), "-300 B"},
		{formatBytes(2970), "2.90 KiB"},
		{formatSize(64), "64 B"},
		{formatSize(4096), "4 KiB"},
		{formatSize(1 << 20), "1 MiB"},
		{formatSize(1<<20 + 1), "1048577 B"},
		{formatAdvantage(0), "-"},
		{formatAdvantage(20.04), "20.0x"},
	} {
		require.Equal(t, tc.want, tc.got)
	}
}

func TestAdvantageAboveOneIsAlwaysBetter(t *testing.T) {
	require.Equal(t, 4.0, p50.advantage(10, 40))
	require.Equal(t, 4.0, rate.advantage(40, 10))
	require.Zero(t, goHeap.advantage(-5, 40), "less than nothing cannot be compared")
	require.Zero(t, rate.advantage(40, 0))
	require.Zero(t, rate.advantage(math.NaN(), 1))
}

func TestMedianIsTheMiddle(t *testing.T) {
	require.Equal(t, 2.0, median([]float64{9, 1, 2}))
	require.Equal(t, 1.5, median([]float64{2, 1}))
	require.True(t, math.IsNaN(median(nil)))
}

func TestEveryShownMetricHasItsQuality(t *testing.T) {
	o, err := parseOptions(nil, testWriter{t})
	require.NoError(t, err)
	for _, tc := range suite(o) {
		for _, m := range tc.Metrics {
			require.Contains(t, qualities, m)
		}
	}
}

// testWriter sends what is written to the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(b))
	return len(b), nil
}
