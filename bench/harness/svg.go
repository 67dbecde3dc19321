package harness

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// canvas collects the elements of an SVG drawing (https://www.w3.org/TR/SVG11).
// Lengths are in pixels, y grows downwards.
type canvas struct {
	elements strings.Builder
}

const (
	ink   = "#1f2328" // text
	faint = "#656d76" // text that explains
	grid  = "#d8dee4"
	paper = "#ffffff"
	alarm = "#b3261e"
)

// face is how a text looks.
type face struct {
	size   int
	color  string
	bold   bool
	anchor string // start (or empty), middle or end
}

func (c *canvas) text(x, y float64, f face, text string) {
	weight, anchor := "normal", "start"
	if f.bold {
		weight = "bold"
	}
	if f.anchor != "" {
		anchor = f.anchor
	}
	fmt.Fprintf(&c.elements, `<text x="%.1f" y="%.1f" font-size="%d" font-weight="%s" text-anchor="%s" fill="%s">`,
		x, y, f.size, weight, anchor, f.color)
	xml.EscapeText(&c.elements, []byte(text))
	c.elements.WriteString("</text>\n")
}

func (c *canvas) rect(x, y, width, height float64, color string) {
	fmt.Fprintf(&c.elements, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5" fill="%s"/>`+"\n",
		x, y, width, height, color)
}

func (c *canvas) line(x1, y1, x2, y2, width float64, color string) {
	fmt.Fprintf(&c.elements, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n",
		x1, y1, x2, y2, color, width)
}

func (c *canvas) dot(x, y, radius float64, color string) {
	fmt.Fprintf(&c.elements, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`+"\n", x, y, radius, color)
}

// document is the finished drawing.
func (c *canvas) document(width, height float64) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" `+
		`font-family="system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="%s"/>`+"\n", paper)
	b.WriteString(c.elements.String())
	b.WriteString("</svg>\n")
	return []byte(b.String())
}
