package main

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/inspect"
)

// top is what a terminal shows: a line for each session, or for each stream, as many as
// fit, and what the keys choose of them.
type top struct {
	width, height int // of the terminal

	ofStreams bool
	sorted    int // column, or byTraffic
	reverse   bool
	filter    string // only lines that have it
	typing    bool   // the filter
	paused    bool

	before, now *look
	lines       []line
}

// byTraffic sorts by bytes in both directions.
const byTraffic = -1

// keyHelp is the last line of the screen.
const keyHelp = "q quit  s sessions/streams  < > sort by  r reverse  / filter  space pause"

// column is one of the table. Where the terminal is too narrow, those go first that drop
// says, the highest number before the others.
type column struct {
	title string
	left  bool // aligned
	drop  int
}

var sessionColumns = []column{
	{"PID", false, 0}, {"PROGRAM", true, 0}, {"OVER", true, 4}, {"LOCAL", true, 8}, {"", true, 5}, {"REMOTE", true, 0},
	{"STREAMS", false, 3}, {"IN/s", false, 0}, {"OUT/s", false, 0}, {"MSG/s", false, 6}, {"HIT", false, 7},
	{"STALL", false, 10}, {"SPILL", false, 11}, {"RING", false, 12}, {"AGE", false, 9},
}

var streamColumns = []column{
	{"PID", false, 0}, {"PROGRAM", true, 1}, {"STREAM", false, 5}, {"LOCAL", true, 2}, {"REMOTE", true, 0},
	{"IN/s", false, 0}, {"OUT/s", false, 0}, {"IN", false, 4}, {"OUT", false, 4}, {"UNREAD", false, 3}, {"WINDOW", false, 6},
}

// line is a row with what it is sorted by.
type line struct {
	cells   []string
	numbers []float64 // beside the cells, where they are numbers
	traffic float64
}

// add appends a cell.
func (l *line) add(text string, number float64) {
	l.cells, l.numbers = append(l.cells, text), append(l.numbers, number)
}

// take shows a new look.
func (t *top) take(l *look) {
	if t.paused {
		return
	}
	t.before, t.now = t.now, l
}

// key does what a key is for, and says whether that is to end.
func (t *top) key(k rune) (quit bool) {
	if t.typing {
		switch {
		case k == '\r' || k == '\n':
			t.typing = false
		case k == 0x1b: // Escape
			t.typing, t.filter = false, ""
		case k == 0x7f || k == '\b':
			_, size := utf8.DecodeLastRuneInString(t.filter)
			t.filter = t.filter[:len(t.filter)-size]
		case k >= ' ':
			t.filter += string(k)
		}
		return false
	}
	switch k {
	case 'q', 'Q', 3, 4: // Ctrl-C, Ctrl-D
		return true
	case 's':
		t.ofStreams, t.sorted = !t.ofStreams, byTraffic
	case '<':
		t.sorted = max(t.sorted-1, byTraffic)
	case '>':
		t.sorted = min(t.sorted+1, len(t.columns())-1)
	case 'r':
		t.reverse = !t.reverse
	case '/':
		t.typing, t.filter = true, ""
	case 0x1b:
		t.filter = ""
	case ' ':
		t.paused = !t.paused
	}
	return false
}

func (t *top) columns() []column {
	if t.ofStreams {
		return streamColumns
	}
	return sessionColumns
}

// draw returns the screen: height lines of at most width columns.
func (t *top) draw() string {
	t.lines = t.lines[:0]
	streams, in, out := 0, 0.0, 0.0
	sessions := 0
	for i := range t.now.Processes {
		p := &t.now.Processes[i]
		if p.Snapshot == nil {
			t.lines = append(t.lines, line{cells: []string{fmt.Sprint(p.PID), clean(p.Error)}, numbers: []float64{float64(p.PID), 0}})
			continue
		}
		before := previous(t.before, p)
		seconds := p.Snapshot.Time.Sub(before.Time).Seconds()
		sessions += len(p.Snapshot.Sessions)
		streams += total(p.Snapshot)
		i, o := t.ofProcess(p, before, seconds)
		in, out = in+i, out+o
	}
	lines := slices.DeleteFunc(t.lines, func(l line) bool { return !l.has(t.filter) })
	slices.SortStableFunc(lines, t.compare)

	var page bytes.Buffer
	head := fmt.Sprintf("%s  %d processes, %d sessions, %d streams  in %s/s  out %s/s",
		t.now.Time.Format(time.TimeOnly), len(t.now.Processes), sessions, streams, amount(in), amount(out))
	fmt.Fprintln(&page, cut(head, t.width))
	fmt.Fprintln(&page, cut(t.state(), t.width))
	rows := max(t.height-4, 1) // without the two lines above, the titles, and the keys
	shown := min(len(lines), rows)
	for _, row := range t.table(lines[:shown]) {
		fmt.Fprintln(&page, cut(row, t.width))
	}
	for range rows - shown {
		fmt.Fprintln(&page)
	}
	keys := keyHelp
	if more := len(lines) - shown; more > 0 {
		keys = fmt.Sprintf("%d more below  ", more) + keys
	}
	page.WriteString(cut(keys, t.width))
	return page.String()
}

// state says what is shown and in which order.
func (t *top) state() string {
	text := "sessions, by "
	if t.ofStreams {
		text = "streams, by "
	}
	switch {
	case t.sorted == byTraffic:
		text += "traffic"
	case t.columns()[t.sorted].title == "":
		text += "who dialed"
	default:
		text += t.columns()[t.sorted].title
	}
	if t.reverse {
		text += ", reversed"
	}
	if t.paused {
		text += ", PAUSED"
	}
	switch {
	case t.typing:
		text += "  filter: " + t.filter + "_  (Enter, Escape)"
	case t.filter != "":
		text += "  filter: " + t.filter
	}
	return text
}

// ofProcess adds the lines of a process, and returns what its sessions move in a second.
func (t *top) ofProcess(p *process, before *inspect.Snapshot, seconds float64) (in, out float64) {
	s := p.Snapshot
	was := make(map[uint64]rnet.Counters)
	for i := range before.Sessions {
		was[before.Sessions[i].Number] = before.Sessions[i].Counters
	}
	for i := range s.Sessions {
		c := &s.Sessions[i]
		b := was[c.Number]
		bytesIn, bytesOut := perSecond(b.BytesIn, c.BytesIn, seconds), perSecond(b.BytesOut, c.BytesOut, seconds)
		in, out = in+bytesIn, out+bytesOut
		if !t.ofStreams {
			t.session(p, c, b, seconds, bytesIn, bytesOut)
		}
	}
	switch {
	case t.ofStreams:
		t.streams(p, before, seconds)
	case len(s.Sessions) == 0:
		for i := range s.Listeners {
			l := line{}
			l.add(fmt.Sprint(p.PID), float64(p.PID))
			l.add(clean(s.Program), 0)
			l.add("-", 0)
			l.add(listensAt(&s.Listeners[i]), 0)
			l.add("", 0)
			l.add("listens", 0)
			t.lines = append(t.lines, l)
		}
	}
	return in, out
}

func (t *top) session(p *process, c *rnet.SessionStats, b rnet.Counters, seconds, in, out float64) {
	l := line{traffic: in + out}
	arrow := "<-"
	if c.Dialed {
		arrow = "->"
	}
	messages := perSecond(b.FramesIn, c.FramesIn, seconds) + perSecond(b.FramesOut, c.FramesOut, seconds)
	age := p.Snapshot.Time.Sub(c.Opened).Round(time.Second)
	l.add(fmt.Sprint(p.PID), float64(p.PID))
	l.add(clean(p.Snapshot.Program), 0)
	l.add(clean(c.Device), 0)
	l.add(end(c.LocalAddr, c.Unix), 0)
	l.add(arrow, 0)
	l.add(end(c.RemoteAddr, c.Unix), 0)
	l.add(fmt.Sprint(c.Streams), float64(c.Streams))
	l.add(amount(in), in)
	l.add(amount(out), out)
	l.add(fmt.Sprintf("%.0f", messages), messages)
	l.add(ratio(c.HitRatio(), c.PollHits+c.PollMisses), c.HitRatio())
	l.add(fmt.Sprint(c.CreditStalls), float64(c.CreditStalls))
	l.add(fmt.Sprint(c.Spills), float64(c.Spills))
	l.add(amount(float64(c.RingSize)), float64(c.RingSize))
	l.add(age.String(), age.Seconds())
	t.lines = append(t.lines, l)
}

func (t *top) streams(p *process, before *inspect.Snapshot, seconds float64) {
	was := make(map[stream]*rnet.StreamStats)
	for i := range before.Streams {
		b := &before.Streams[i]
		was[stream{b.Session, b.ID}] = b
	}
	for i := range p.Snapshot.Streams {
		s := &p.Snapshot.Streams[i]
		b := was[stream{s.Session, s.ID}]
		if b == nil {
			b = &rnet.StreamStats{}
		}
		in, out := perSecond(b.BytesIn, s.BytesIn, seconds), perSecond(b.BytesOut, s.BytesOut, seconds)
		l := line{traffic: in + out}
		l.add(fmt.Sprint(p.PID), float64(p.PID))
		l.add(clean(p.Snapshot.Program), 0)
		l.add(fmt.Sprintf("%d.%d", s.Session, s.ID), float64(s.ID))
		l.add(end(s.LocalAddr, s.Unix), 0)
		l.add(end(s.RemoteAddr, s.Unix), 0)
		l.add(amount(in), in)
		l.add(amount(out), out)
		l.add(amount(float64(s.BytesIn)), float64(s.BytesIn))
		l.add(amount(float64(s.BytesOut)), float64(s.BytesOut))
		l.add(amount(float64(s.Unread)), float64(s.Unread))
		l.add(amount(float64(s.SendWindow)), float64(s.SendWindow))
		t.lines = append(t.lines, l)
	}
}

// has says whether a cell has the text.
func (l line) has(text string) bool {
	return text == "" || slices.ContainsFunc(l.cells, func(cell string) bool { return strings.Contains(cell, text) })
}

// compare orders lines: numbers with the largest first, text by the alphabet.
func (t *top) compare(a, b line) int {
	order := 0
	switch n := t.sorted; {
	case n == byTraffic:
		order = cmp.Compare(b.traffic, a.traffic)
	case n >= len(a.cells) || n >= len(b.cells):
		order = cmp.Compare(len(b.cells), len(a.cells))
	case t.columns()[n].left:
		order = strings.Compare(a.cells[n], b.cells[n])
	default:
		order = cmp.Compare(b.numbers[n], a.numbers[n])
	}
	if t.reverse {
		return -order
	}
	return order
}

// table aligns the lines below their titles, with the columns for which there is room.
func (t *top) table(lines []line) []string {
	columns := t.columns()
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = utf8.RuneCountInString(c.title)
		for _, l := range lines {
			if i < len(l.cells) && len(l.cells) > 2 { // what has two says why nothing is known
				widths[i] = max(widths[i], utf8.RuneCountInString(l.cells[i]))
			}
		}
	}
	dropped := make([]bool, len(columns))
	for {
		need, worst := -2, -1
		for i, c := range columns {
			if dropped[i] {
				continue
			}
			need += widths[i] + 2
			if c.drop > 0 && (worst < 0 || c.drop > columns[worst].drop) {
				worst = i
			}
		}
		if need <= t.width || worst < 0 {
			break
		}
		dropped[worst] = true
	}
	titles := line{}
	for _, c := range columns {
		titles.cells = append(titles.cells, c.title)
	}
	var rows []string
	for _, l := range append([]line{titles}, lines...) {
		var row strings.Builder
		for i, cell := range l.cells {
			if dropped[i] {
				continue
			}
			gap := strings.Repeat(" ", max(widths[i]-utf8.RuneCountInString(cell), 0))
			if columns[i].left {
				row.WriteString(cell + gap + "  ")
			} else {
				row.WriteString(gap + cell + "  ")
			}
		}
		rows = append(rows, strings.TrimRight(row.String(), " "))
	}
	return rows
}

// cut shortens text to a width.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width, 0)])
}

// perSecond is by how much a counter has grown in a second.
func perSecond(from, to uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(grew(from, to)) / seconds
}
