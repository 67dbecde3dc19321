package harness

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/bench/internal/svg"
)

// The drawing shows the table's figures: at the top the round trip times as
// dots on one logarithmic scale, below them everything else as bars that
// begin at zero and have a scale for each group. Every figure stands beside
// its mark.
const (
	drawingWidth = 1080.0
	margin       = 32.0
	barHeight    = 14.0
	barStep      = 18.0
	groupGap     = 14.0
	labelRoom    = 148.0 // right of the longest bar, for its figure
	nameRoom     = 64.0  // left of the marks, for the transport's name
)

// colors of the columns, in the order of the transports.
var colors = map[string]string{
	"tcp":    "#6e7781",
	"unix":   "#2f7fc1",
	"ramjet": "#d9480f",
}

func colorOf(transport string) string {
	if color, ok := colors[transport]; ok {
		return color
	}
	return svg.Ink
}

func (r report) writeSVG(path string) error {
	if err := os.WriteFile(path, r.draw(), 0o666); err != nil {
		return fmt.Errorf("write drawing: %w", err)
	}
	return nil
}

func (r report) draw() []byte {
	var c svg.Canvas
	y := r.drawHead(&c, margin+8)
	y = r.drawLatencies(&c, y+30)
	half := (drawingWidth - 3*margin) / 2
	left := r.drawBars(&c, margin, y, half, "Rates (longer is better)", rate, throughput)
	left = r.drawBars(&c, margin, left+30, half, "Latency under load (shorter is better)", p99)
	right := r.drawBars(&c, 2*margin+half, y, half, "CPU time of both processes (shorter is better)", cpuPerOp, cpuPerGiB)
	right = r.drawBars(&c, 2*margin+half, right+30, half, "Memory of both processes (shorter is better)", goMemory, goHeap, resident)
	return c.Document(drawingWidth, max(left, right)+margin)
}

// drawHead writes the title, the conditions, and a warning for a transport
// that was not what its name says, and returns the y below.
func (r report) drawHead(c *svg.Canvas, y float64) float64 {
	c.Text(margin, y, svg.Face{Size: 20, Color: svg.Ink, Bold: true}, "Two processes, one host: TCP, Unix sockets and ramjet")
	where, how := r.conditions()
	c.Text(margin, y+22, svg.Face{Size: 12, Color: svg.Faint}, where)
	c.Text(margin, y+39, svg.Face{Size: 12, Color: svg.Faint}, how)
	y += 39
	for i, name := range r.Transports {
		fellBack := func(res result) bool { return res.Cells[i].FellBack > 0 }
		if slices.ContainsFunc(r.Results, fellBack) {
			y += 20
			c.Text(margin, y, svg.Face{Size: 13, Color: svg.Alarm, Bold: true}, fmt.Sprintf("%s fell back to TCP: figures with an exclamation mark are TCP's, or partly.", name))
		}
	}
	if n := r.failures(); n > 0 {
		y += 20
		c.Text(margin, y, svg.Face{Size: 13, Color: svg.Alarm, Bold: true}, fmt.Sprintf("%d operations failed; figures with an asterisk are of tests with failures.", n))
	}
	return y
}

// drawLatencies draws the tests that show a median latency.
func (r report) drawLatencies(c *svg.Canvas, y float64) float64 {
	least, most := math.Inf(1), 0.0
	for _, res := range r.Results {
		for _, cell := range res.Cells {
			if v := cell.Median[p50]; res.shows(p50) && v > 0 {
				least, most = min(least, v), max(most, v, cell.Median[p999])
			}
		}
	}
	if most == 0 {
		return y - 20 // nothing to draw
	}
	s := svg.NewLogScale(least, most, margin+nameRoom, drawingWidth-margin-280)
	c.Text(margin, y, svg.Face{Size: 15, Color: svg.Ink, Bold: true}, "Round trip (further left is better)")
	c.Text(drawingWidth-margin, y, svg.Face{Size: 12, Color: svg.Faint, Anchor: "end"}, "dot p50, tick p99, end of line p99.9; logarithmic")
	top := y + 30
	c.Text(s.Right+36, top-6, svg.Face{Size: 11, Color: svg.Faint}, "p50")
	c.Text(drawingWidth-margin, top-6, svg.Face{Size: 11, Color: svg.Faint, Anchor: "end"}, "p99 / p99.9")
	y = top
	var marks svg.Canvas // above the grid, whose height is known afterwards
	for _, res := range r.Results {
		if res.shows(p50) {
			y = r.drawSpans(&marks, s, res, y+groupGap)
		}
	}
	s.Grid(c, top, y, decadeName)
	c.Add(&marks)
	return y + 40
}

func decadeName(ns float64) string {
	return strings.Replace(time.Duration(math.Round(ns)).String(), "µs", "us", 1)
}

func (r report) drawSpans(c *svg.Canvas, s svg.LogScale, res result, y float64) float64 {
	c.Text(margin, y+10, svg.Face{Size: 12, Color: svg.Ink, Bold: true}, res.Title)
	y += barStep
	for i, cell := range res.Cells {
		color, mid := colorOf(cell.Transport), y+barStep/2
		c.Text(margin, mid+4, svg.Face{Size: 12, Color: color, Bold: true}, r.columns()[i].title)
		if v := cell.Median; v[p50] > 0 {
			s.Span(c, mid, color, v[p50], v[p99], v[p999])
		}
		c.Text(s.Right+36, mid+4, svg.Face{Size: 12, Color: svg.Ink, Bold: true}, cell.text(p50)+r.comparison(res, i, p50))
		c.Text(drawingWidth-margin, mid+4, svg.Face{Size: 11, Color: svg.Faint, Anchor: "end"}, cell.text(p99)+" / "+cell.text(p999))
		y += barStep
	}
	return y
}

// drawBars draws those of the metrics that the tests show, except what
// drawLatencies has drawn, and returns the y below.
func (r report) drawBars(c *svg.Canvas, x, y, width float64, title string, metrics ...metric) float64 {
	top := y
	for _, res := range r.Results {
		for _, m := range metrics {
			if !res.shows(m) || m == p99 && res.shows(p50) {
				continue
			}
			if y == top {
				c.Text(x, y, svg.Face{Size: 15, Color: svg.Ink, Bold: true}, title)
				y += 10
			}
			y = r.drawGroup(c, x, y+groupGap, width, res, m)
		}
	}
	return y
}

func (r report) drawGroup(c *svg.Canvas, x, y, width float64, res result, m metric) float64 {
	title := res.Title
	if !qualities[m].higher {
		title += ": " + qualities[m].title
	}
	c.Text(x, y+10, svg.Face{Size: 12, Color: svg.Ink, Bold: true}, title)
	y += barStep
	largest := 0.0
	for _, cell := range res.Cells {
		largest = max(largest, cell.Median[m])
	}
	for i, cell := range res.Cells {
		color := colorOf(cell.Transport)
		c.Text(x, y+barHeight-3, svg.Face{Size: 12, Color: color, Bold: true}, r.columns()[i].title)
		length := 0.0
		if v := cell.Median[m]; v > 0 {
			length = max(1, v/largest*(width-nameRoom-labelRoom))
		}
		c.Rect(x+nameRoom, y, length, barHeight, color)
		c.Text(x+nameRoom+length+8, y+barHeight-3, svg.Face{Size: 12, Color: svg.Ink}, cell.text(m)+r.comparison(res, i, m))
		y += barStep
	}
	return y
}

// comparison is what stands behind a figure: how it compares with TCP's.
func (r report) comparison(res result, i int, m metric) string {
	base := r.baseline()
	if base < 0 || i == base {
		return ""
	}
	x := m.advantage(res.Cells[i].Median[m], res.Cells[base].Median[m])
	if x == 0 {
		return ""
	}
	return ", " + formatAdvantage(x) + " TCP"
}

// shows reports whether m is among the test's figures.
func (t test) shows(m metric) bool {
	return slices.Contains(t.Metrics, m)
}
