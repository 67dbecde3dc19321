package harness

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// metric names one figure that a round of a workload gives.
type metric string

const (
	p50        metric = "p50"         // ns
	p99        metric = "p99"         // ns
	p999       metric = "p99.9"       // ns
	lateness   metric = "lateness"    // ns, median of how late an open loop's messages were written
	rate       metric = "rate"        // operations per second
	throughput metric = "throughput"  // bytes per second
	cpuPerOp   metric = "cpu_per_op"  // ns, both processes
	cpuPerGiB  metric = "cpu_per_gib" // ns, both processes
	goMemory   metric = "go_memory"   // bytes per connection, heap and stacks of both processes
	goHeap     metric = "go_heap"     // bytes per connection, without the stacks
	resident   metric = "resident"    // bytes per connection, everything that is mapped

	worstP99    metric = "worst_p99"    // ns, of the client process that has the longest
	serverWhole metric = "server_whole" // bytes, the server's resident set with all connections
	descriptors metric = "descriptors"  // of the server, per connection
)

// quality says how a metric is written and read.
type quality struct {
	title  string
	format func(float64) string
	higher bool // higher is better
}

var qualities = map[metric]quality{
	p50:        {"p50", formatNanos, false},
	p99:        {"p99", formatNanos, false},
	p999:       {"p99.9", formatNanos, false},
	lateness:   {"written late by", formatNanos, false},
	rate:       {"per second", formatRate, true},
	throughput: {"per second", formatThroughput, true},
	cpuPerOp:   {"CPU each", formatNanos, false},
	cpuPerGiB:  {"CPU per GiB", formatNanos, false},
	goMemory:   {"Go heap and stacks", formatBytes, false},
	goHeap:     {"Go heap alone", formatBytes, false},
	resident:   {"resident", formatBytes, false},

	worstP99:    {"worst client's p99", formatNanos, false},
	serverWhole: {"server's memory", formatBytes, false},
	descriptors: {"server's descriptors each", significant, false},
}

// legend is the order in which metrics are explained, and explanations how.
var (
	legend       = []metric{p50, p99, p999, worstP99, lateness, rate, throughput, cpuPerOp, cpuPerGiB, goMemory, goHeap, resident, serverWhole, descriptors}
	explanations = map[metric]string{
		p50:         "half of the operations took no longer, " + timed,
		p99:         "the same for 99 of 100",
		p999:        "the same for 999 of 1000",
		worstP99:    "p99 of the client process that has the longest",
		lateness:    "how late the open loop wrote, median; part of the latency",
		rate:        "operations of all connections together: round trips, calls, messages, or connections opened",
		throughput:  "in a test of throughput, bytes that arrived",
		cpuPerOp:    "user and system time of all measured processes, divided by the operations",
		cpuPerGiB:   "the same, divided by the GiB that arrived",
		goMemory:    "of both processes, divided by the connections; but for event handlers a goroutine waits for each on the server's side",
		goHeap:      "the same without goroutine stacks",
		resident:    "all memory in use, in Go's heap or not, divided by the connections",
		serverWhole: "all memory of the server in use, with all sessions",
		descriptors: "open files of the server, divided by the sessions",
	}
)

// timed is what latencies are counted from, and to.
const timed = "from the write to the last byte of the answer, or from the dial to the close where connections are opened; in an open loop from the time at which the call was due"

// alone are the explanations in place of "the same", where the table does not show what that would mean.
var alone = map[metric]struct {
	as   metric
	text string
}{
	p99:       {p50, "99 of 100 operations took no longer, " + timed},
	cpuPerGiB: {cpuPerOp, "user and system time of all measured processes, divided by the GiB that arrived"},
}

// advantage is how many times better value is than base, 0 if that cannot be
// said.
func (m metric) advantage(value, base float64) float64 {
	if !(value > 0 && base > 0) {
		return 0
	}
	if qualities[m].higher {
		return value / base
	}
	return base / value
}

// median of the values; the mean of the middle two if their number is even,
// NaN if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[mid-1] + sorted[mid]) / 2
	}
	return sorted[mid]
}

// significant writes x with three significant digits, four from 1000 on.
func significant(x float64) string {
	switch a := math.Abs(x); {
	case a >= 99.95 || a == 0:
		return fmt.Sprintf("%.0f", x)
	case a >= 9.995:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}

// scale is a unit and what it is worth.
type scale struct {
	worth float64
	name  string
}

// scaled writes x in the largest of the units, which ascend, that it reaches.
func scaled(x float64, units []scale) string {
	u := units[0]
	for _, next := range units[1:] {
		if math.Abs(x) >= next.worth*0.9995 {
			u = next
		}
	}
	return significant(x/u.worth) + " " + u.name
}

// formatNanos writes a time, in microseconds also below one: round trips of
// one host can then be compared at a glance.
func formatNanos(ns float64) string {
	return scaled(ns, []scale{
		{float64(time.Microsecond), "us"},
		{float64(time.Millisecond), "ms"},
		{float64(time.Second), "s"},
	})
}

func formatRate(perSecond float64) string {
	return scaled(perSecond, []scale{{1, "/s"}, {1e3, "k/s"}, {1e6, "M/s"}})
}

func formatThroughput(bytesPerSecond float64) string {
	return scaled(bytesPerSecond, []scale{{1e6, "MB/s"}, {1e9, "GB/s"}})
}

func formatBytes(bytes float64) string {
	return scaled(bytes, []scale{{1, "B"}, {1 << 10, "KiB"}, {1 << 20, "MiB"}, {1 << 30, "GiB"}})
}

// formatSize writes a message size exactly.
func formatSize(bytes int) string {
	switch {
	case bytes >= 1<<20 && bytes%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes >= 1<<10 && bytes%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", bytes>>10)
	default:
		return fmt.Sprintf("%d B", bytes)
	}
}

// formatAdvantage writes a ratio to TCP: above 1 is better than TCP.
func formatAdvantage(x float64) string {
	if x == 0 {
		return "-"
	}
	return significant(x) + "x"
}
