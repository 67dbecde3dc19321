package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// writeTable prints the report for people: a row for each figure, a column
// for each transport, and beside it the comparison with TCP.
func (r report) writeTable(out io.Writer) error {
	rows, right := r.rows()
	width := make([]int, len(right))
	for _, row := range rows {
		for i, text := range row {
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	var b strings.Builder
	where, how := r.conditions()
	fmt.Fprintf(&b, "%s\n%s\n\n", where, how)
	for n, row := range rows {
		if n > 0 && row[0] != "" {
			b.WriteByte('\n')
		}
		var line strings.Builder
		for i, text := range row {
			gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if right[i] {
				line.WriteString(gap + text)
			} else {
				line.WriteString(text + gap)
			}
			line.WriteString("  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	r.writeRemarks(&b)
	_, err := io.WriteString(out, b.String())
	return err
}

// rows of text, the heading first, and which columns stand to the right.
func (r report) rows() (rows [][]string, right []bool) {
	columns, base := r.columns(), r.baseline()
	head := []string{"", ""}
	right = []bool{false, false}
	for i, c := range columns {
		title := c.title
		if c.fellBack {
			title += " (TCP!)"
		}
		head, right = append(head, title), append(right, true)
		if base >= 0 && i != base {
			head, right = append(head, "vs TCP"), append(right, true)
		}
	}
	rows = append(rows, head)
	for _, res := range r.Results {
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
	return rows, right
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
	text := qualities[m].format(value)
	if c.FellBack > 0 {
		text += "!"
	}
	if c.Failures > 0 {
		text += "*"
	}
	return text
}

// busyLoad is the load average for each CPU above which the figures come with
// a warning.
const busyLoad = 0.5

// missedTarget is the share of the target rate below which an open loop is
// said to have missed it.
const missedTarget = 0.99

// writeRemarks prints what a reader of the figures must know.
func (r report) writeRemarks(out io.Writer) {
	fmt.Fprintln(out)
	if s := r.System; s.Load > busyLoad*float64(s.CPUs) {
		fmt.Fprintf(out, "The machine had other work: %.1f processes wanted its %d CPUs in the minute before.\n", s.Load, s.CPUs)
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
		for _, c := range res.Cells {
			if c.LeftOut != "" {
				fmt.Fprintf(out, "%s, %s: left out: %s.\n", res.Title, c.Transport, c.LeftOut)
			}
		}
	}
	if n := r.failures(); n > 0 {
		fmt.Fprintf(out, "*** %d failures:\n", n)
	}
	for _, res := range r.Results {
		for _, c := range res.Cells {
			if c.Failures > 0 {
				fmt.Fprintf(out, "  %s, %s: %d, the first: %s\n", res.Title, c.Transport, c.Failures, c.Failure)
			}
		}
	}
}
