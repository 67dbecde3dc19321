package harness

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// loses says whether an advantage over TCP is a defeat: a twentieth worse, or
// a tenth where the figure is one of few calls.
func (m metric) loses(advantage float64) bool {
	limit := 0.95
	if m == p99 || m == p999 || m == worstP99 {
		limit = 0.9
	}
	return advantage > 0 && advantage < limit
}

// writePrograms prints the page of programs: a row for each test, and for
// each figure TCP's and beside it what the others make of it. What has other
// figures follows, as on the first page.
func (r report) writePrograms(out io.Writer) error {
	var calls, others []result
	for _, res := range r.Results {
		if slices.Contains(res.Metrics, rate) {
			calls = append(calls, res)
		} else {
			others = append(others, res)
		}
	}
	var b strings.Builder
	where, how := r.conditions()
	fmt.Fprintf(&b, "%s\n%s\n\n", where, how)
	if len(calls) > 0 {
		writeRows(&b, 1, r.programRows(calls))
		b.WriteByte('\n')
	}
	if len(others) > 0 {
		writeRows(&b, 2, r.rows(others))
	}
	r.writeLegend(&b, "Unix, ramjet", ", or <")
	r.writeLosses(&b, calls)
	r.writeApart(&b, calls)
	r.writeRemarks(&b)
	_, err := io.WriteString(out, b.String())
	return err
}

// programRows are a row for each result, below two of headings.
func (r report) programRows(results []result) [][]string {
	figures, transports := []string{""}, []string{""}
	for _, m := range programMetrics {
		for i, c := range r.columns() {
			title := ""
			if i == 0 {
				title = qualities[m].title
			}
			figures, transports = append(figures, title), append(transports, c.heading())
		}
	}
	rows := [][]string{figures, transports}
	family := ""
	for _, res := range results {
		if name, _, _ := strings.Cut(res.Name, "/"); name != family {
			rows, family = append(rows, nil), name
		}
		row := []string{res.Title}
		for _, m := range programMetrics {
			row = append(row, r.compare(res, m)...)
		}
		rows = append(rows, row)
		if res.Workload.Clients > 1 {
			worst := []string{"  the worst client"}
			for _, m := range programMetrics {
				if m == p99 {
					worst = append(worst, r.compare(res, worstP99)...)
				} else {
					worst = append(worst, make([]string, len(r.Transports))...)
				}
			}
			rows = append(rows, worst)
		}
	}
	return rows
}

// compare gives the cells of a metric: TCP's figure, and how many times better
// the others are. Without TCP they are figures, too.
func (r report) compare(res result, m metric) []string {
	base := r.baseline()
	var row []string
	for i, c := range res.Cells {
		switch {
		case !slices.Contains(res.Metrics, m):
			row = append(row, "")
		case base < 0 || i == base:
			row = append(row, c.text(m))
		default:
			row = append(row, c.mark(formatRatio(m, m.advantage(c.Median[m], res.Cells[base].Median[m]))))
		}
	}
	return row
}

// formatRatio is formatAdvantage, with a mark in place of the x if it is none.
func formatRatio(m metric, advantage float64) string {
	text := formatAdvantage(advantage)
	if m.loses(advantage) {
		text = strings.TrimSuffix(text, "x") + "<"
	}
	return text
}

// writeLosses counts what is worse than TCP, of what could be compared.
func (r report) writeLosses(out io.Writer, results []result) {
	base := r.baseline()
	if base < 0 || len(results) == 0 {
		return
	}
	fmt.Fprintln(out)
	for i, column := range r.columns() {
		if i == base {
			continue
		}
		figures, lost, tests, lostTests := 0, 0, 0, 0
		for _, res := range results {
			lostBefore, figuresBefore := lost, figures
			for _, m := range res.Metrics {
				advantage := m.advantage(res.Cells[i].Median[m], res.Cells[base].Median[m])
				if advantage > 0 {
					figures++
				}
				if m.loses(advantage) {
					lost++
				}
			}
			if figures > figuresBefore {
				tests++
			}
			if lost > lostBefore {
				lostTests++
			}
		}
		fmt.Fprintf(out, "%s is worse than TCP (<) in %d of %d figures, in %d of %d tests.\n",
			column.title, lost, figures, lostTests, tests)
	}
}
