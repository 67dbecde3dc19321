// Package rounds measures in benchmarks calls that take nanoseconds: so many at a time, and the
// median of all rounds counts, whatever else the machine did.
package rounds

import (
	"slices"
	"testing"
	"time"
)

// Times are those of rounds. The zero value has none.
type Times []time.Duration

// Add adds a round that began at begin and ends now.
func (t *Times) Add(begin time.Time) { *t = append(*t, time.Since(begin)) }

// Report reports what a call takes by the median round, of so many calls, and by the shortest.
func (t Times) Report(b *testing.B, calls int) {
	slices.Sort(t)
	b.ReportMetric(float64(t[len(t)/2])/float64(calls), "ns/op")
	b.ReportMetric(float64(t[0])/float64(calls), "least-ns")
}

// Median reports what a call takes. round makes so many calls; between is called after each round,
// and does not count; it may be nil.
func Median(b *testing.B, round func(calls int), between func()) {
	const calls = 64
	var times Times
	for b.Loop() {
		begin := time.Now()
		round(calls)
		times.Add(begin)
		if between != nil {
			between()
		}
	}
	times.Report(b, calls)
}
