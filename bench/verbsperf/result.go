package verbsperf

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
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
	total := s.Iterations * s.QPs
	mb := float64(s.Size) / (1 << 20) // of a message
	for _, marks := range ends {
		if len(marks) != 2*parts {
			continue // it has sent nothing
		}
		begun, done := marks[:parts], marks[parts:]
		took := done[parts-1].Seconds()
		average += mb * float64(total) / took
		rate += float64(total) / took / 1e6
		best := 0.0
		for i := range done {
			for j := range begun[:i+1] {
				if n := partsEnd(total, i+1) - partsEnd(total, j); n > 0 { // parts of few messages may have none
					best = max(best, mb*float64(n)/(done[i]-begun[j]).Seconds())
				}
			}
		}
		peak += best
	}
	return result{s, []column{{"BW peak[MB/sec]", peak}, {"BW average[MB/sec]", average}, {"MsgRate[Mpps]", rate}}}
}

// print writes the line, and a heading if it begins a table.
func (r *result) print(out io.Writer, heading bool) {
	if heading {
		fmt.Fprintf(out, "\n%s: %s\n %-10s %-12s", r.spec.Test, r.spec.conditions(), "#bytes", "#iterations")
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

// conditions are what the lines of a table have in common.
func (s *spec) conditions() string {
	var list []string
	if !s.latency() {
		list = append(list, fmt.Sprintf("%d QP, depth %d", s.QPs, s.Depth))
	}
	if s.Inline > 0 {
		list = append(list, fmt.Sprintf("inline up to %d", s.Inline))
	}
	list = append(list, map[bool]string{false: "polling", true: "events"}[s.Events])
	if s.Both {
		list = append(list, "bidirectional")
	}
	if s.CM {
		list = append(list, "by rcm")
	}
	return strings.Join(list, ", ")
}

// MarshalJSON has the figures by their names.
func (r result) MarshalJSON() ([]byte, error) {
	m := map[string]any{
		"test": r.spec.Test, "#bytes": r.spec.Size, "#iterations": r.spec.Iterations, "qps": r.spec.QPs, "depth": r.spec.Depth, "cq-mod": r.spec.Mod,
		"inline": r.spec.Inline, "events": r.spec.Events, "bidirectional": r.spec.Both, "rcm": r.spec.CM,
	}
	for _, c := range r.columns {
		m[c.name] = c.value
	}
	return json.Marshal(m)
}

// value is the figure of a name.
func (r *result) value(name string) float64 {
	for _, c := range r.columns {
		if c.name == name {
			return c.value
		}
	}
	return 0
}

// page is what a run has measured.
type page struct {
	device  string
	results []result
}

// goesOn reports whether r belongs to the table of the last result: nothing but
// the size is another.
func (p *page) goesOn(r result) bool {
	if len(p.results) == 0 {
		return false
	}
	last := p.results[len(p.results)-1].spec
	last.Size = r.spec.Size
	return last == r.spec
}
