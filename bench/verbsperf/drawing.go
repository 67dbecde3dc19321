package verbsperf

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/seed-b9b531af/ramjet/bench/internal/svg"
)

// The drawing has a row for each line of the tables: latencies on one logarithmic scale, and
// bandwidths on another one below. Every figure stands beside its mark.
const (
	drawingWidth = 1080.0
	margin       = 32.0
	sizeRoom     = 90.0  // left of the marks, for the size
	figureRoom   = 280.0 // right of them, for the figures
	rowStep      = 18.0
	tableGap     = 14.0
)

// section is what is drawn on one scale, by the names of its columns.
type section struct {
	title, marks   string
	dot, tick, end string
	color          string
	unit           string
	latency        bool
}

var sections = []section{
	{
		title: "Latency (further left is better)", marks: "dot t_typical, tick 99%, end of line 99.9%; logarithmic",
		dot: "t_typical[usec]", tick: "99% percentile[usec]", end: "99.9% percentile[usec]", color: "#2f7fc1", unit: "us", latency: true,
	},
	{
		title: "Bandwidth (further right is better)", marks: "dot BW average, tick BW peak; logarithmic",
		dot: "BW average[MB/sec]", tick: "BW peak[MB/sec]", end: "BW peak[MB/sec]", color: "#d9480f", unit: "MB/s",
	},
}

func (p *page) draw() []byte {
	var c svg.Canvas
	y := margin + 8
	c.Text(margin, y, svg.Face{Size: 20, Color: svg.Ink, Bold: true}, "The verbs of "+p.device+", between two processes")
	c.Text(margin, y+22, svg.Face{Size: 12, Color: svg.Faint}, fmt.Sprintf("%s, %d CPUs, %s", runtime.GOARCH, runtime.NumCPU(), runtime.Version()))
	y += 52
	for i := range sections {
		y = p.drawSection(&c, &sections[i], y)
	}
	return c.Document(drawingWidth, y)
}

// drawSection returns the y below.
func (p *page) drawSection(c *svg.Canvas, sec *section, y float64) float64 {
	part := page{device: p.device}
	least, most := 0.0, 0.0
	for _, r := range p.results {
		if dot := r.value(sec.dot); r.spec.latency() == sec.latency && dot > 0 {
			part.results = append(part.results, r)
			if most = max(most, dot, r.value(sec.tick), r.value(sec.end)); least == 0 || dot < least {
				least = dot
			}
		}
	}
	if len(part.results) == 0 {
		return y
	}
	c.Text(margin, y, svg.Face{Size: 15, Color: svg.Ink, Bold: true}, sec.title)
	c.Text(drawingWidth-margin, y, svg.Face{Size: 12, Color: svg.Faint, Anchor: "end"}, sec.marks)
	y += 30
	scale := svg.NewLogScale(least, most, margin+sizeRoom, drawingWidth-margin-figureRoom)
	top := y
	var marks svg.Canvas // above the grid, whose height is known afterwards
	var above page
	for _, r := range part.results {
		if !above.goesOn(r) {
			y += tableGap
			marks.Text(margin, y+10, svg.Face{Size: 12, Color: svg.Ink, Bold: true}, r.spec.Test+": "+r.spec.conditions())
			y += rowStep
		}
		above.results = append(above.results, r)
		sec.drawRow(&marks, scale, &r, y+rowStep/2)
		y += rowStep
	}
	scale.Grid(c, top, y, func(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) + " " + sec.unit })
	c.Add(&marks)
	return y + 50
}

func (sec *section) drawRow(c *svg.Canvas, scale svg.LogScale, r *result, y float64) {
	dot, tick, end := r.value(sec.dot), r.value(sec.tick), r.value(sec.end)
	c.Text(margin, y+4, svg.Face{Size: 12, Color: sec.color, Bold: true}, sizeName(r.spec.Size))
	scale.Span(c, y, sec.color, dot, tick, end)
	c.Text(scale.Right+36, y+4, svg.Face{Size: 12, Color: svg.Ink, Bold: true}, figure(dot)+" "+sec.unit)
	more := figure(tick)
	if end != tick {
		more += " / " + figure(end)
	}
	c.Text(drawingWidth-margin, y+4, svg.Face{Size: 11, Color: svg.Faint, Anchor: "end"}, more)
}

// figure has three digits, or those before the point.
func figure(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func sizeName(n int) string {
	unit := 0
	for ; n%1024 == 0 && unit < 3; unit++ {
		n /= 1024
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", n, []string{"B", "KiB", "MiB", "GiB"}[unit]))
}
