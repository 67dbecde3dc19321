package verbsperf

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// column is a figure with the name that perftest has for it.
type column struct {
	name  string
	value float64
}

// result is one line of a table.
type result struct {
	spec    spec
	columns []column
}

// latencies makes the line of a latency test. A time is half of a round trip, but
// for READ and atomics, which are one.
func latencies(s spec, times []time.Duration) result {
	half := 2.0
	if op := s.operation(); op == "read" || op == "atomic" {
		half = 1
	}
	slices.Sort(times)
	at := func(q float64) float64 {
		return times[min(int(q*float64(len(times))), len(times)-1)].Seconds() * 1e6 / half
	}
	sum, squares := 0.0, 0.0
	for _, t := range times {
		us := t.Seconds() * 1e6 / half
		sum += us
		squares += us * us
	}
	n := float64(len(times))
	mean := sum / n
	return result{s, []column{
		{"t_min[usec]", at(0)}, {"t_max[usec]", at(1)}, {"t_typical[usec]", at(0.5)}, {"t_avg[usec]", mean},
		{"t_stdev[usec]", math.Sqrt(max(0, squares/n-mean*mean))}, {"99% percentile[usec]", at(0.99)}, {"99.9% percentile[usec]", at(0.999)},
	}}
}

// bandwidth makes the line of a bandwidth test from what both ends have sent; MB are
// 2^20 bytes. The peak is that of the parts in a row that were done soonest after the
// first of them was begun.
func bandwidth(s spec, ends ...[]time.Duration) result {
	peak, average, rate := 0.0, 0.0, 0.0
	messages := float64(s.Iterations * s.QPs)
	mb := messages * float64(s.Size) / (1 << 20)
	for _, marks := range ends {
		if len(marks) != 2*parts {
			continue // it has sent nothing
		}
		begun, done := marks[:parts], marks[parts:]
		took := done[parts-1].Seconds()
		average += mb / took
		rate += messages / took / 1e6
		best := 0.0
		for i := range done {
			for j := range begun[:i+1] {
				best = max(best, mb*float64(i-j+1)/parts/(done[i]-begun[j]).Seconds())
			}
		}
		peak += best
	}
	return result{s, []column{{"BW peak[MB/sec]", peak}, {"BW average[MB/sec]", average}, {"MsgRate[Mpps]", rate}}}
}

// print writes the line, and a heading where the test is another than before.
func (r *result) print(out io.Writer, heading bool) {
	if heading {
		fmt.Fprintf(out, "\n%s: %d QP, depth %d, inline up to %d, events %t, bidirectional %t\n", r.spec.Test, r.spec.QPs, r.spec.Depth,
			r.spec.Inline, r.spec.Events, r.spec.Both)
		fmt.Fprintf(out, " %-10s %-12s", "#bytes", "#iterations")
		for _, c := range r.columns {
			fmt.Fprintf(out, " %22s", c.name)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, " %-10d %-12d", r.spec.Size, r.spec.Iterations)
	for _, c := range r.columns {
		fmt.Fprintf(out, " %22.3f", c.value)
	}
	fmt.Fprintln(out)
}

// MarshalJSON has the figures by their names.
func (r *result) MarshalJSON() ([]byte, error) {
	m := map[string]any{
		"test": r.spec.Test, "#bytes": r.spec.Size, "#iterations": r.spec.Iterations, "qps": r.spec.QPs, "depth": r.spec.Depth,
		"inline": r.spec.Inline, "events": r.spec.Events, "bidirectional": r.spec.Both,
	}
	for _, c := range r.columns {
		m[c.name] = c.value
	}
	return json.Marshal(m)
}
