package harness

import (
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/seed-b9b531af/ramjet/internal/container"
)

// apart ends the name of a column of which the server is in one container and the client in
// another. In the columns beside it both are in the first.
const apart = "-apart"

// withApart adds such a column for each transport.
func withApart(transports names) names {
	all := slices.Clone(transports)
	for _, name := range transports {
		all = append(all, name+apart)
	}
	return all
}

// contain makes the containers in which processes are started from now on.
func (at *place) contain() (err error) {
	at.containers[0], at.containers[1], err = container.Pair()
	if err != nil {
		return fmt.Errorf("-containers: %w", err)
	}
	at.site.Host = at.containers[0].IP
	return nil
}

func (at *place) release() {
	for _, c := range at.containers {
		c.Close()
	}
}

// begin starts the process of an assignment where it belongs.
func (at *place) begin(cmd *exec.Cmd, a assignment, cpu int) error {
	in := at.containers[0]
	switch {
	case a.Role == computes:
		in = nil
	case a.Role == dialing && strings.HasSuffix(a.Transport, apart):
		in = at.containers[1]
	}
	if in == nil {
		return startOn(cmd, cpu)
	}
	cmd.Env = append(cmd.Env, "RNET_DIR="+at.site.Dir)
	return in.Start(cmd, func(cmd *exec.Cmd) error { return startOn(cmd, cpu) })
}

// writeApart says what it costs to be in two containers: how many times better each figure is
// than the same inside one, as the median of the tests.
func (r report) writeApart(out io.Writer, results []result) {
	for i, name := range r.Transports {
		base, between := strings.CutSuffix(name, apart)
		inside := slices.Index(r.Transports, base)
		if !between || inside < 0 {
			continue
		}
		var figures []string
		compared := 0
		for _, m := range programMetrics {
			var ratios []float64
			for _, res := range results {
				if ratio := m.advantage(res.Cells[i].Median[m], res.Cells[inside].Median[m]); ratio > 0 && slices.Contains(res.Metrics, m) {
					ratios = append(ratios, ratio)
				}
			}
			compared = max(compared, len(ratios))
			if len(ratios) > 0 {
				figures = append(figures, fmt.Sprintf("%s %.2fx (%.2fx to %.2fx)", qualities[m].title, median(ratios), slices.Min(ratios), slices.Max(ratios)))
			}
		}
		columns := r.columns()
		fmt.Fprintf(out, "\n%s against %s, median of %d tests (from the worst to the best): %s\n", columns[i].title, columns[inside].title, compared, strings.Join(figures, ", "))
	}
}
