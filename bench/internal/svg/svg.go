// Package svg draws what the benchmarks have measured.
package svg

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// A Canvas collects the elements of an SVG drawing (https://www.w3.org/TR/SVG11).
// Lengths are in pixels, y grows downwards.
type Canvas struct {
	elements strings.Builder
}

// Colors.
const (
	Ink   = "#1f2328" // text
	Faint = "#656d76" // text that explains
	Grid  = "#d8dee4"
	Paper = "#ffffff"
	Alarm = "#b3261e"
)

// A Face is how a text looks.
type Face struct {
	Size   int
	Color  string
	Bold   bool
	Anchor string // start (or empty), middle or end
}

// Text begins, is centered or ends at x, by the face.
func (c *Canvas) Text(x, y float64, f Face, text string) {
	weight, anchor := "normal", "start"
	if f.Bold {
		weight = "bold"
	}
	if f.Anchor != "" {
		anchor = f.Anchor
	}
	fmt.Fprintf(&c.elements, `<text x="%.1f" y="%.1f" font-size="%d" font-weight="%s" text-anchor="%s" fill="%s">`,
		x, y, f.Size, weight, anchor, f.Color)
	xml.EscapeText(&c.elements, []byte(text))
	c.elements.WriteString("</text>\n")
}

// Rect is filled.
func (c *Canvas) Rect(x, y, width, height float64, color string) {
	fmt.Fprintf(&c.elements, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5" fill="%s"/>`+"\n",
		x, y, width, height, color)
}

// Line is straight.
func (c *Canvas) Line(x1, y1, x2, y2, width float64, color string) {
	fmt.Fprintf(&c.elements, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n",
		x1, y1, x2, y2, color, width)
}

// Dot is a filled circle.
func (c *Canvas) Dot(x, y, radius float64, color string) {
	fmt.Fprintf(&c.elements, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`+"\n", x, y, radius, color)
}

// Add draws another canvas over what is there.
func (c *Canvas) Add(other *Canvas) { c.elements.WriteString(other.elements.String()) }

// Document is the finished drawing.
func (c *Canvas) Document(width, height float64) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" `+
		`font-family="system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="%s"/>`+"\n", Paper)
	b.WriteString(c.elements.String())
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// A LogScale maps values to x by their logarithms, over whole decades.
type LogScale struct {
	low, high   float64 // log10 of values
	Left, Right float64
}

// NewLogScale has least and most, which are more than 0, between left and right.
func NewLogScale(least, most, left, right float64) LogScale {
	return LogScale{math.Floor(math.Log10(least)), math.Ceil(math.Log10(most * 1.01)), left, right}
}

// X is where a value is.
func (s LogScale) X(value float64) float64 {
	return s.Left + (math.Log10(value)-s.low)/(s.high-s.low)*(s.Right-s.Left)
}

// Span draws a dot at one value, a tick at the next, and a line to the last.
func (s LogScale) Span(c *Canvas, y float64, color string, dot, tick, end float64) {
	c.Line(s.X(dot), y, s.X(end), y, 2, color)
	c.Line(s.X(tick), y-5, s.X(tick), y+5, 2, color)
	c.Dot(s.X(dot), y, 5.5, color)
}

// Grid draws the decades from top to bottom, with their names above.
func (s LogScale) Grid(c *Canvas, top, bottom float64, name func(float64) string) {
	for decade := s.low; decade <= s.high; decade++ {
		value := math.Pow(10, decade)
		c.Line(s.X(value), top, s.X(value), bottom, 1, Grid)
		c.Text(s.X(value), top-6, Face{Size: 11, Color: Faint, Anchor: "middle"}, name(value))
	}
}
