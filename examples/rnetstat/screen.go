package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/inspect"
)

// screen shows one look after the other, with the rates since the last.
type screen struct {
	out     io.Writer
	streams int // of a process

	before *look
	page   bytes.Buffer
	table  *tabwriter.Writer
}

func (w *screen) show(l *look) error {
	w.page.Reset()
	fmt.Fprintf(&w.page, "%s  %d processes\n", l.Time.Format(time.TimeOnly), len(l.Processes))
	for i := range l.Processes {
		p := &l.Processes[i]
		if p.Snapshot == nil {
			fmt.Fprintf(&w.page, "\n%d  %s\n", p.PID, clean(p.Error))
			continue
		}
		w.process(p, previous(w.before, p))
	}
	w.before = l
	_, err := w.out.Write(w.page.Bytes())
	return err
}

// previous returns what a process told at the look before, nothing if it is new.
func previous(before *look, p *process) *inspect.Snapshot {
	if before != nil {
		for i := range before.Processes {
			q := &before.Processes[i]
			if q.Snapshot != nil && q.PID == p.PID && q.endpoint == p.endpoint {
				return q.Snapshot
			}
		}
	}
	return &inspect.Snapshot{Time: p.Snapshot.Time}
}

func (w *screen) process(p *process, before *inspect.Snapshot) {
	s := p.Snapshot
	seconds := s.Time.Sub(before.Time).Seconds()
	fmt.Fprintf(&w.page, "\n%d  %s", p.PID, clean(s.Program))
	if p.PID != s.PID {
		fmt.Fprintf(&w.page, " (%d for itself)", s.PID)
	}
	fmt.Fprintf(&w.page, "  %s pinned%s\n", amount(float64(s.PinnedBytes)), dials(s.Dials))
	w.table = tabwriter.NewWriter(&w.page, 2, 8, 2, ' ', 0)
	w.listeners(s.Listeners)
	w.sessions(s, before, seconds)
	w.flows(s, before, seconds)
	w.table.Flush() // to memory
}

// row writes a line of a table.
func (w *screen) row(cells ...any) {
	for _, c := range cells {
		fmt.Fprintf(w.table, "%v\t", c)
	}
	fmt.Fprintln(w.table)
}

// dials tells how many dials went each way, and why not a faster one.
func dials(list []rnet.DialCount) string {
	var text strings.Builder
	for i, d := range list {
		text.WriteString([]string{"; dials: ", ", "}[min(i, 1)])
		fmt.Fprintf(&text, "%d %s", d.Dials, clean(string(d.Transport)))
		if d.Reason != "none" {
			fmt.Fprintf(&text, " (%s)", clean(d.Reason))
		}
	}
	return text.String()
}

func (w *screen) listeners(list []rnet.ListenerStats) {
	if len(list) == 0 {
		return
	}
	w.row("LISTEN", "SESSIONS", "WAITING", "STREAMS", "TCP", "DENIED", "FAILED")
	for i := range list {
		l := &list[i]
		w.row(listensAt(l), l.Sessions, l.Waiting, l.Streams, l.TCP, l.Denied, l.Failed)
	}
	w.table.Flush()
}

// listensAt is the address of a listener.
func listensAt(l *rnet.ListenerStats) string { return end(l.Addr, l.Unix) }

// end is what an end of a connection is shown as: its address, or the Unix socket at which the
// connection was made.
func end(addr netip.AddrPort, unix string) string {
	if unix != "" {
		return clean(unix)
	}
	return clean(addr.String()) // a zone is any text
}

func (w *screen) sessions(s, before *inspect.Snapshot, seconds float64) {
	if len(s.Sessions) == 0 {
		return
	}
	was := make(map[uint64]rnet.Counters)
	for i := range before.Sessions {
		was[before.Sessions[i].Number] = before.Sessions[i].Counters
	}
	w.row("SESSION", "OVER", "LOCAL", "", "REMOTE", "PEER", "AGE", "STREAMS", "IN/s", "OUT/s", "MSG-IN/s", "MSG-OUT/s", "HIT", "WAKE", "STALL", "SPILL", "RING")
	for i := range s.Sessions {
		t := &s.Sessions[i]
		b, arrow := was[t.Number], "<-"
		if t.Dialed {
			arrow = "->"
		}
		w.row(t.Number, clean(string(t.Transport)+" "+t.Device), end(t.LocalAddr, t.Unix), arrow, end(t.RemoteAddr, t.Unix), t.PeerPID,
			s.Time.Sub(t.Opened).Round(time.Second), t.Streams,
			rate(b.BytesIn, t.BytesIn, seconds), rate(b.BytesOut, t.BytesOut, seconds),
			count(b.FramesIn, t.FramesIn, seconds), count(b.FramesOut, t.FramesOut, seconds),
			ratio(t.HitRatio(), t.PollHits+t.PollMisses), t.Parks+t.ThreadWaits, t.CreditStalls, t.Spills,
			amount(float64(t.RingHeld))+"/"+amount(float64(t.RingSize)))
	}
	w.table.Flush()
}

// stream names a stream of a process.
type stream struct {
	session uint64
	id      uint32
}

func (w *screen) flows(s, before *inspect.Snapshot, seconds float64) {
	if len(s.Streams) == 0 || w.streams <= 0 {
		return
	}
	was := make(map[stream]*rnet.StreamStats)
	for i := range before.Streams {
		t := &before.Streams[i]
		was[stream{t.Session, t.ID}] = t
	}
	last := func(t *rnet.StreamStats) rnet.StreamStats {
		if b := was[stream{t.Session, t.ID}]; b != nil {
			return *b
		}
		return rnet.StreamStats{}
	}
	moved := func(t rnet.StreamStats) uint64 {
		b := last(&t)
		return grew(b.BytesIn, t.BytesIn) + grew(b.BytesOut, t.BytesOut)
	}
	list := slices.Clone(s.Streams)
	slices.SortStableFunc(list, func(a, b rnet.StreamStats) int { return cmp.Compare(moved(b), moved(a)) })
	w.row("STREAM", "LOCAL", "REMOTE", "IN/s", "OUT/s", "IN", "OUT", "UNREAD", "WINDOW")
	shown := min(len(list), w.streams)
	for i := range list[:shown] {
		t := &list[i]
		b := last(t)
		w.row(fmt.Sprintf("%d.%d", t.Session, t.ID), end(t.LocalAddr, t.Unix), end(t.RemoteAddr, t.Unix),
			rate(b.BytesIn, t.BytesIn, seconds), rate(b.BytesOut, t.BytesOut, seconds),
			amount(float64(t.BytesIn)), amount(float64(t.BytesOut)), amount(float64(t.Unread)), amount(float64(t.SendWindow)))
	}
	w.table.Flush()
	if more := total(s) - shown; more > 0 {
		fmt.Fprintf(&w.page, "and %d streams more", more)
		if s.Truncated { // and it did not look at the traffic for that
			fmt.Fprintf(&w.page, "; the process told of %d, and others may have more traffic", len(s.Streams))
		}
		fmt.Fprintln(&w.page)
	}
}

// total is how many streams a process has.
func total(s *inspect.Snapshot) (n int) {
	for i := range s.Sessions {
		n += s.Sessions[i].Streams
	}
	return n
}

// grew is how much a counter has grown. A stream that has the number of a
// former one begins anew.
func grew(from, to uint64) uint64 {
	if to < from {
		return to
	}
	return to - from
}

// rate is what a number of bytes has grown by in a second.
func rate(from, to uint64, seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return amount(float64(grew(from, to)) / seconds)
}

// count is rate for what are no bytes.
func count(from, to uint64, seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(grew(from, to))/seconds)
}

func ratio(share float64, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

// amount writes a number of bytes in few letters.
func amount(n float64) string {
	unit := 0
	for ; n >= 1024 && unit < 5; unit++ {
		n /= 1024
	}
	if unit == 0 || n >= 100 {
		return fmt.Sprintf("%.0f%s", n, [...]string{"", "K", "M", "G", "T", "P"}[unit])
	}
	return fmt.Sprintf("%.1f%s", n, [...]string{"", "K", "M", "G", "T", "P"}[unit])
}

// clean keeps what another process told from moving the cursor.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
