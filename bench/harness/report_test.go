package harness

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sample is a report with a fast transport, one that failed in part, and one
// that fell back.
func sample() report {
	o := options{Rounds: 3, Duration: 200 * time.Millisecond, Pin: "none"}
	r := report{
		System:     system{Go: "go1.26", Kernel: "Linux 6.1", Arch: "amd64", CPU: "A <fast> CPU", CPUs: 2, Idle: 0.3, Stolen: 0.04},
		Options:    o,
		Transports: []string{"tcp", "unix", "ramjet"},
	}
	rtt := result{test: test{Name: "rtt-64", Title: "round trip, 64 B", Metrics: []metric{p50, p99, p999}}}
	rtt.Cells = []cell{
		{Transport: "tcp", Used: "*net.TCPConn", Median: map[metric]float64{p50: 40e3, p99: 90e3, p999: 120e3}},
		{Transport: "unix", Used: "*net.UnixConn", Median: map[metric]float64{p50: 20e3, p99: 45e3, p999: 60e3}, Failures: 2, Failure: "client: read: reset"},
		{Transport: "ramjet", Used: "*rnet.Conn", Median: map[metric]float64{p50: 800, p99: 9e3, p999: 30e3}},
	}
	requests := result{test: test{Name: "requests-64", Title: "requests, 64 B, 64 connections", Metrics: []metric{rate, p99, cpuPerOp}}}
	requests.Workload.Rate = 500e3
	requests.Cells = []cell{
		{Transport: "tcp", Median: map[metric]float64{rate: 200e3, p99: 3e6, cpuPerOp: 14e3}},
		{Transport: "unix", Median: map[metric]float64{}, Failures: 1, Failure: "the server has ended"},
		{Transport: "ramjet", Median: map[metric]float64{rate: 499e3, p99: 1e6, cpuPerOp: 2e3}},
	}
	r.Results = []result{rtt, requests}
	return r
}

func TestLegendSaysTheSameOfWhatIsThere(t *testing.T) {
	r := sample()
	r.Results = r.Results[1:] // without p50
	var out bytes.Buffer
	require.NoError(t, r.writeTable(&out))
	require.Contains(t, out.String(), "p99: 99 of 100 operations took no longer, from the write")
	require.NotContains(t, out.String(), "the same")
}

func TestTableShowsFiguresBesideTheirRatioToTCP(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, sample().writeTable(&out))
	want := `amd64, 2 CPUs (A <fast> CPU), Linux 6.1, go1.26, 30% idle before
closed loop, median of 3 rounds of 200ms, ramjet profile: balanced (the default), not pinned

                                               TCP      Unix  vs TCP    ramjet  vs TCP

round trip, 64 B                p50        40.0 us  20.0 us*   2.00x   0.80 us   50.0x
                                p99        90.0 us  45.0 us*   2.00x   9.00 us   10.0x
                                p99.9       120 us  60.0 us*   2.00x   30.0 us   4.00x

requests, 64 B, 64 connections  per second  200 k/s    failed       -   499 k/s   2.50x
                                p99        3.00 ms    failed       -   1.00 ms   3.00x
                                CPU each   14.0 us    failed       -   2.00 us   7.00x

vs TCP: how many times better than TCP of this run. 2x: twice the rate, or half the time or memory; below 1x: worse.
p50: half of the operations took no longer, from the write to the last byte of the answer, or from the dial to the close where connections are opened; in an open loop from the time at which the call was due.
p99: the same for 99 of 100.
p99.9: the same for 999 of 1000.
per second: operations of all connections together: round trips, calls, messages, or connections opened.
CPU each: user and system time of all measured processes, divided by the operations.

The machine had other work: before the run 70% of its CPU time was in use.
The host of this virtual machine took 4% of its CPU time during the run: p99 and p99.9 are in part those of the host.
ramjet connections were *rnet.Conn.
requests, 64 B, 64 connections, tcp: only 200 k/s of 500 k/s; its latencies are those of an overload.
*** 3 failures:
  round trip, 64 B, unix: 2, the first: client: read: reset
  requests, 64 B, 64 connections, unix: 1, the first: the server has ended
`
	// The heading is not part of what sets a column's width alone; compare
	// without runs of spaces, then the alignment.
	require.Equal(t, strings.Fields(want), strings.Fields(out.String()))
	for _, lines := range [][]string{strings.Split(out.String(), "\n")[3:12]} {
		width := len(lines[0])
		for _, line := range lines {
			if line != "" {
				require.Len(t, line, width, "all rows end in the same column: %q", line)
			}
		}
	}
}

func TestTableSaysLoudlyThatRamjetFellBack(t *testing.T) {
	r := sample()
	r.Results[1].Cells[2].FellBack, r.Results[1].Cells[2].Opened = 64, 64
	r.Results[1].Cells[2].Used = "*net.TCPConn (no device)"
	var out bytes.Buffer
	require.NoError(t, r.writeTable(&out))
	require.Contains(t, out.String(), "ramjet (TCP!)")
	require.Contains(t, out.String(), "499 k/s!")
	require.Contains(t, out.String(), "!!! requests, 64 B, 64 connections, ramjet FELL BACK TO TCP: 64 of 64 connections were *net.TCPConn (no device).")
	require.Contains(t, out.String(), "ramjet connections were *rnet.Conn.", "in the other test")
	require.Contains(t, string(r.draw()), "ramjet fell back to TCP")
}

func TestTableMarksATestThatFellBackInPart(t *testing.T) {
	r := sample()
	r.Results[0].Cells[2].FellBack, r.Results[0].Cells[2].Opened = 1, 10
	var out bytes.Buffer
	require.NoError(t, r.writeTable(&out))
	require.NotContains(t, out.String(), "(TCP!)")
	require.Contains(t, out.String(), "0.80 us!")
	require.Contains(t, out.String(), "1 of 10 connections")
}

func TestTableWithoutTCPHasNoRatio(t *testing.T) {
	r := sample()
	r.Transports = r.Transports[1:]
	for i := range r.Results {
		r.Results[i].Cells = r.Results[i].Cells[1:]
	}
	var out bytes.Buffer
	require.NoError(t, r.writeTable(&out))
	require.NotContains(t, out.String(), "vs TCP")
	require.Contains(t, out.String(), "0.80 us")
	require.NotContains(t, string(r.draw()), "x TCP")
}

func TestDrawingIsWellFormedAndHoldsEveryFigure(t *testing.T) {
	r := sample()
	drawing := r.draw()
	var texts []string
	for d := xml.NewDecoder(bytes.NewReader(drawing)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if chars, ok := token.(xml.CharData); ok {
			texts = append(texts, string(chars))
		}
		if element, ok := token.(xml.StartElement); ok {
			for _, attribute := range element.Attr {
				require.NotContains(t, attribute.Value, "NaN")
				require.NotContains(t, attribute.Value, "Inf")
			}
		}
	}
	all := strings.Join(texts, "\n")
	for _, figure := range []string{
		"A <fast> CPU", "0.80 us, 50.0x TCP", "9.00 us / 30.0 us", "20.0 us*, 2.00x TCP",
		"499 k/s, 2.50x TCP", "2.00 us, 7.00x TCP", "1.00 ms, 3.00x TCP", "failed", "3 operations failed",
	} {
		require.Contains(t, all, figure)
	}
}

func TestDrawingOfNothingIsStillADrawing(t *testing.T) {
	for _, r := range []report{{}, {Transports: []string{"tcp"}, Results: []result{{
		test:  test{Metrics: []metric{p50, rate}},
		Cells: []cell{{Transport: "tcp"}},
	}}}} {
		require.NoError(t, xml.Unmarshal(r.draw(), new(struct{})))
		require.NoError(t, r.writeTable(io.Discard))
	}
}

func TestCellConcludesWithTheMedianOfItsRounds(t *testing.T) {
	var c cell
	for _, ns := range []int64{300, 100, 200} {
		h := newHistogram()
		require.NoError(t, h.RecordValues(ns, 10))
		c.add(round{values: map[metric]float64{p50: float64(ns)}, latency: h, used: "*net.TCPConn", failures: 1, failure: "it broke"})
	}
	c.conclude()
	require.Equal(t, 200.0, c.Median[p50])
	require.EqualValues(t, 30, c.Latency.Count)
	require.EqualValues(t, 100, c.Latency.Min)
	require.EqualValues(t, 300, c.Latency.Max)
	require.Equal(t, 3, c.Failures)
	require.Equal(t, "it broke", c.Failure)
}

func TestProgressTellsEachTestToAFile(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, 4)
	p.test(1, 2, "round trip")
	p.round(1, 2, "round trip", 1, 2, "tcp")
	p.finish()
	require.True(t, strings.HasPrefix(out.String(), "[1/2] round trip\nmeasured for "), out.String())
}

func TestProgressRewritesOneLineOnATerminal(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, 4)
	p.terminal = true
	p.test(1, 2, "round trip")
	p.round(1, 2, "round trip", 1, 2, "tcp")
	p.round(1, 2, "round trip", 1, 2, "unix")
	require.NotContains(t, out.String(), "\n")
	require.Contains(t, out.String(), " 25% [1/2] round trip, round 1 of 2, unix")
}
