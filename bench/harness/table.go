package harness

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// writeTable prints the report for people: a row for each figure, a column
// for each transport, and beside it the comparison with TCP.
func (r report) writeTable(out io.Writer) error {
	if r.Options.Page == programsPage {
		return r.writePrograms(out)
	}
	var b strings.Builder
	where, how := r.conditions()
	fmt.Fprintf(&b, "%s\n%s\n\n", where, how)
	writeRows(&b, 2, r.rows(r.Results))
	r.writeLegend(&b, "vs TCP", "")
	r.writeRemarks(&b)
	_, err := io.WriteString(out, b.String())
	return err
}

// writeRows aligns the columns: the first ones to the left, as many as said,
// the others to the right. A row without columns is an empty line.
func writeRows(b *strings.Builder, left int, rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, text := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, text := range row {
			gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if i < left {
				line.WriteString(text + gap)
			} else {
				line.WriteString(gap + text)
			}
			line.WriteString("  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// rows of text for some of the results, the heading first.
func (r report) rows(results []result) (rows [][]string) {
	columns, base := r.columns(), r.baseline()
	head := []string{"", ""}
	for i, c := range columns {
		head = append(head, c.heading())
		if base >= 0 && i != base {
			head = append(head, "vs TCP")
		}
	}
	rows = append(rows, head)
	for _, res := range results {
		rows = append(rows, nil)
		if res.Floor != nil {
			rows = append(rows, r.floorRow(res, base))
		}
		title := res.Title
		for _, m := range res.Metrics {
			row := []string{title, qualities[m].title}
			for i, c := range res.Cells {
				row = append(row, c.text(m))
				if base >= 0 && i != base {
					row = append(row, formatAdvantage(m.advantage(c.Median[m], res.Cells[base].Median[m])))
				}
			}
			rows = append(rows, row)
			title = ""
		}
	}
	return rows
}

// floorRow shows how far from the floor each transport was.
func (r report) floorRow(res result, base int) []string {
	m := res.Floor.Metric
	row := []string{res.Title, qualities[m].title + " / " + res.Memory.text(m)}
	of := slices.IndexFunc(r.Results, func(other result) bool { return other.Name == res.Floor.Of })
	for i := range r.Transports {
		text := "-"
		if of >= 0 && res.Memory.Median[m] > 0 {
			text = formatAdvantage(r.Results[of].Cells[i].Median[m] / res.Memory.Median[m])
		}
		row = append(row, text)
		if base >= 0 && i != base {
			row = append(row, "")
		}
	}
	return row
}

// text is the cell's figure for m, with an asterisk if operations failed and
// an exclamation mark if connections were TCP instead of what was asked for.
func (c cell) text(m metric) string {
	value, ok := c.Median[m]
	if !ok || math.IsNaN(value) {
		if c.Failures > 0 {
			return "failed"
		}
		return "-"
	}
	return c.mark(qualities[m].format(value))
}

// mark adds to a figure what must be known of it.
func (c cell) mark(text string) string {
	if c.FellBack > 0 {
		text += "!"
	}
	if c.Failures > 0 {
		text += "*"
	}
	return text
}

// The figures come with a warning below this share of idle time before the run, or from this share on of time that
// the host of a virtual machine took during it.
const (
	quietIdle   = 0.9
	quietStolen = 0.01
)

// writeLegend says what the columns that show the comparison and the metrics of the
// report mean. mark is what stands behind a figure that is worse than TCP's.
func (r report) writeLegend(out io.Writer, comparison, mark string) {
	fmt.Fprintln(out)
	if r.baseline() >= 0 {
		fmt.Fprintf(out, "%s: how many times better than TCP of this run. 2x: twice the rate, or half the time or memory; below 1x%s: worse.\n", comparison, mark)
	}
	if slices.ContainsFunc(r.Results, func(res result) bool { return res.Floor != nil }) {
		fmt.Fprintln(out, "floor: what shared memory allows by itself, and how many times as long each transport took, or what share of the throughput it had.")
	}
	shown := func(m metric) bool {
		return slices.ContainsFunc(r.Results, func(res result) bool { return res.shows(m) })
	}
	for _, m := range legend {
		text := explanations[m]
		if full, ok := alone[m]; ok && !shown(full.as) {
			text = full.text
		}
		if shown(m) {
			fmt.Fprintf(out, "%s: %s.\n", qualities[m].title, text)
		}
	}
}

// missedTarget is the share of the target rate below which an open loop is
// said to have missed it.
const missedTarget = 0.99

// writeRemarks prints what a reader of the figures must know.
func (r report) writeRemarks(out io.Writer) {
	fmt.Fprintln(out)
	if idle := r.System.Idle; idle >= 0 && idle < quietIdle {
		fmt.Fprintf(out, "The machine had other work: before the run %.0f%% of its CPU time was in use.\n", 100*(1-idle))
	}
	if stolen := r.System.Stolen; stolen >= quietStolen {
		fmt.Fprintf(out, "The host of this virtual machine took %.0f%% of its CPU time during the run: p99 and p99.9 are in part those of the host.\n", 100*stolen)
	}
	for _, c := range r.columns() {
		if c.used != "" && c.name != "tcp" && c.name != "unix" {
			fmt.Fprintf(out, "%s connections were %s.\n", c.name, c.used)
		}
	}
	for _, res := range r.Results {
		for _, c := range res.Cells {
			if c.FellBack > 0 {
				fmt.Fprintf(out, "!!! %s, %s FELL BACK TO TCP: %d of %d connections were %s.\n",
					res.Title, c.Transport, c.FellBack, c.Opened, c.Used)
			}
		}
	}
	for _, res := range r.Results {
		for _, c := range res.Cells {
			target := res.Workload.Rate
			if reached, ok := c.Median[rate]; ok && target > 0 && reached < target*missedTarget {
				fmt.Fprintf(out, "%s, %s: only %s of %s; its latencies are those of an overload.\n",
					res.Title, c.Transport, formatRate(reached), formatRate(target))
			}
		}
	}
	for _, res := range r.Results {
		for _, c := range res.cells() {
			if c.LeftOut != "" {
				fmt.Fprintf(out, "%s, %s: left out: %s.\n", res.Title, c.Transport, c.LeftOut)
			}
		}
	}
	if n := r.failures(); n > 0 {
		fmt.Fprintf(out, "*** %d failures:\n", n)
	}
	for _, res := range r.Results {
		for _, c := range res.cells() {
			if c.Failures > 0 {
				fmt.Fprintf(out, "  %s, %s: %d, the first: %s\n", res.Title, c.Transport, c.Failures, c.Failure)
			}
		}
	}
}
