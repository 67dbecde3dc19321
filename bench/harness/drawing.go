package harness

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"
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
	return ink
}

func (r report) writeSVG(path string) error {
	if err := os.WriteFile(path, r.draw(), 0o666); err != nil {
		return fmt.Errorf("write drawing: %w", err)
	}
	return nil
}

func (r report) draw() []byte {
	var c canvas
	y := r.drawHead(&c, margin+8)
	y = r.drawLatencies(&c, y+30)
	half := (drawingWidth - 3*margin) / 2
	left := r.drawBars(&c, margin, y, half, "Rates (longer is better)", rate, throughput)
	left = r.drawBars(&c, margin, left+30, half, "Latency under load (shorter is better)", p99)
	right := r.drawBars(&c, 2*margin+half, y, half, "CPU time of both processes (shorter is better)", cpuPerOp, cpuPerGiB)
	right = r.drawBars(&c, 2*margin+half, right+30, half, "Memory of both processes (shorter is better)", goMemory, goHeap, resident)
	return c.document(drawingWidth, max(left, right)+margin)
}

// drawHead writes the title, the conditions, and a warning for a transport
// that was not what its name says, and returns the y below.
func (r report) drawHead(c *canvas, y float64) float64 {
	c.text(margin, y, face{size: 20, color: ink, bold: true}, "Two processes, one host: TCP, Unix sockets and ramjet")
	where, how := r.conditions()
	c.text(margin, y+22, face{size: 12, color: faint}, where)
	c.text(margin, y+39, face{size: 12, color: faint}, how)
	y += 39
	for i, name := range r.Transports {
		fellBack := func(res result) bool { return res.Cells[i].FellBack > 0 }
		if slices.ContainsFunc(r.Results, fellBack) {
			y += 20
			c.text(margin, y, face{size: 13, color: alarm, bold: true}, fmt.Sprintf("%s fell back to TCP: figures with an exclamation mark are TCP's, or partly.", name))
		}
	}
	if n := r.failures(); n > 0 {
		y += 20
		c.text(margin, y, face{size: 13, color: alarm, bold: true}, fmt.Sprintf("%d operations failed; figures with an asterisk are of tests with failures.", n))
	}
	return y
}

// logScale maps times in ns to x.
type logScale struct {
	low, high   float64 // decades: log10 of ns
	left, right float64
}

func (s logScale) x(ns float64) float64 {
	return s.left + (math.Log10(ns)-s.low)/(s.high-s.low)*(s.right-s.left)
}

// drawLatencies draws the tests that show a median latency.
func (r report) drawLatencies(c *canvas, y float64) float64 {
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
	s := logScale{
		low:   math.Floor(math.Log10(least)),
		high:  math.Ceil(math.Log10(most * 1.01)),
		left:  margin + nameRoom,
		right: drawingWidth - margin - 280,
	}
	c.text(margin, y, face{size: 15, color: ink, bold: true}, "Round trip (further left is better)")
	c.text(drawingWidth-margin, y, face{size: 12, color: faint, anchor: "end"}, "dot p50, tick p99, end of line p99.9; logarithmic")
	top := y + 30
	c.text(s.right+36, top-6, face{size: 11, color: faint}, "p50")
	c.text(drawingWidth-margin, top-6, face{size: 11, color: faint, anchor: "end"}, "p99 / p99.9")
	y = top
	var marks canvas // above the grid, whose height is known afterwards
	for _, res := range r.Results {
		if res.shows(p50) {
			y = r.drawSpans(&marks, s, res, y+groupGap)
		}
	}
	for decade := s.low; decade <= s.high; decade++ {
		ns := math.Pow(10, decade)
		c.line(s.x(ns), top, s.x(ns), y, 1, grid)
		c.text(s.x(ns), top-6, face{size: 11, color: faint, anchor: "middle"}, decadeName(ns))
	}
	c.elements.WriteString(marks.elements.String())
	return y + 40
}

func decadeName(ns float64) string {
	return strings.Replace(time.Duration(math.Round(ns)).String(), "µs", "us", 1)
}

func (r report) drawSpans(c *canvas, s logScale, res result, y float64) float64 {
	c.text(margin, y+10, face{size: 12, color: ink, bold: true}, res.Title)
	y += barStep
	for i, cell := range res.Cells {
		color, mid := colorOf(cell.Transport), y+barStep/2
		c.text(margin, mid+4, face{size: 12, color: color, bold: true}, r.columns()[i].title)
		if v := cell.Median; v[p50] > 0 {
			c.line(s.x(v[p50]), mid, s.x(v[p999]), mid, 2, color)
			c.line(s.x(v[p99]), mid-5, s.x(v[p99]), mid+5, 2, color)
			c.dot(s.x(v[p50]), mid, 5.5, color)
		}
		c.text(s.right+36, mid+4, face{size: 12, color: ink, bold: true}, cell.text(p50)+r.comparison(res, i, p50))
		c.text(drawingWidth-margin, mid+4, face{size: 11, color: faint, anchor: "end"}, cell.text(p99)+" / "+cell.text(p999))
		y += barStep
	}
	return y
}

// drawBars draws those of the metrics that the tests show, except what
// drawLatencies has drawn, and returns the y below.
func (r report) drawBars(c *canvas, x, y, width float64, title string, metrics ...metric) float64 {
	top := y
	for _, res := range r.Results {
		for _, m := range metrics {
			if !res.shows(m) || m == p99 && res.shows(p50) {
				continue
			}
			if y == top {
				c.text(x, y, face{size: 15, color: ink, bold: true}, title)
				y += 10
			}
			y = r.drawGroup(c, x, y+groupGap, width, res, m)
		}
	}
	return y
}

func (r report) drawGroup(c *canvas, x, y, width float64, res result, m metric) float64 {
	title := res.Title
	if !qualities[m].higher {
		title += ": " + qualities[m].title
	}
	c.text(x, y+10, face{size: 12, color: ink, bold: true}, title)
	y += barStep
	largest := 0.0
	for _, cell := range res.Cells {
		largest = max(largest, cell.Median[m])
	}
	for i, cell := range res.Cells {
		color := colorOf(cell.Transport)
		c.text(x, y+barHeight-3, face{size: 12, color: color, bold: true}, r.columns()[i].title)
		length := 0.0
		if v := cell.Median[m]; v > 0 {
			length = max(1, v/largest*(width-nameRoom-labelRoom))
		}
		c.rect(x+nameRoom, y, length, barHeight, color)
		c.text(x+nameRoom+length+8, y+barHeight-3, face{size: 12, color: ink}, cell.text(m)+r.comparison(res, i, m))
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
