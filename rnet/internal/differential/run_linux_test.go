package differential

import (
	"fmt"
	"time"
)

// event is a call and what it returned, in the order in which calls were made or,
// for those that had to wait, in which they had to return.
type event struct {
	step
	outcome
}

// decision is what the TCP connection did at a step, for the other one to do too.
type decision struct {
	mode   mode
	call   call // as it was done
	finish []wait
	rough  [2]bool // see roughly
	read   int     // by the Read that did not wait
}

type mode uint8

const (
	doIt    mode = iota
	startIt      // it has to wait
	skipIt       // it would wait for another call of its half
)

// wait is a call that waits.
type wait struct {
	end  int
	kind kind
}

// history is what has happened to a pair so far, as far as the caller knows.
type history struct {
	pending    [2][writes + 1]*step
	closed     [2]bool
	shut       [2]bool // CloseWrite
	readClosed [2]bool // CloseRead
	expired    [2][writes + 1]bool
	linger0    [2]bool
	flooded    [2]bool // its Writes may not have come to the peer
	resets     [2]bool // it was closed with a reset
	arrived    [2]bool // something came since its Read began to wait
	written    [2]int64
	read       [2]int64
}

// overTCP runs the sequence over TCP.
func overTCP(p *pair, q sequence) (events []event, script []decision) {
	var h history
	for _, s := range q {
		d := decision{call: s.call}
		d.mode = h.choose(p, s)
		if d.mode == startIt && s.Op == "Read" {
			d.call.N = min(d.call.N, shortRead)
		}
		s.call = d.call
		if d.mode != skipIt {
			h.before(p, s, d.mode)
		}
		rough := [2]bool{h.flooded[1], h.flooded[0]}
		done := perform(p, &h, s, d.mode)
		if s.Op == "Read" && len(done) == 1 {
			d.read = int(done[0].N)
		}
		events = append(events, roughly(rough, done...)...)
		h.settle(p)
		h.drained(p)
		for end := range p.ends {
			for _, k := range []kind{reads, writes} {
				if h.returns(p, end, k) {
					d.finish = append(d.finish, wait{end, k})
				}
			}
		}
		for _, w := range d.finish {
			events = append(events, roughly(rough, finish(p, &h, w))...)
		}
		d.rough = rough
		script = append(script, d)
	}
	return events, script
}

// follow runs the sequence over a session. pause is for what was sent to be taken in, where
// nobody tells.
func follow(p *pair, q sequence, script []decision, pause time.Duration) (events []event) {
	var h history
	for i, s := range q {
		s.call = script[i].call
		rough := script[i].rough
		if p.echo == nil {
			s.Least = script[i].read
		}
		done := perform(p, &h, s, script[i].mode)
		if len(done) == 1 {
			done[0].Least = 0
		}
		events = append(events, roughly(rough, done...)...)
		if stuck(events) {
			return events
		}
		p.barrier(pause)
		h.drained(p)
		for _, w := range script[i].finish {
			events = append(events, roughly(rough, finish(p, &h, w))...)
			if stuck(events) {
				return events
			}
		}
	}
	return events
}

// roughly leaves out of events how much was read of what a flood has sent: the
// buffers of the two differ.
func roughly(rough [2]bool, events ...event) []event {
	for i, e := range events {
		if rough[e.End] && e.kind() == reads {
			events[i].N, events[i].Sum = min(e.N, 1), 0
		}
	}
	return events
}

func stuck(events []event) bool {
	return len(events) > 0 && events[len(events)-1].Err == blocks
}

func perform(p *pair, h *history, s step, m mode) []event {
	switch m {
	case skipIt:
		return nil
	case startIt:
		h.pending[s.End][s.kind()] = &s
		h.arrived[s.End] = h.arrived[s.End] && s.kind() != reads
		h.arrived[1-s.End] = h.arrived[1-s.End] || s.kind() == writes
		p.ends[s.End].start(s.call)
		return nil
	}
	o := p.ends[s.End].do(s.call)
	h.count(s, o)
	if s.kind() == writes && o.N > 0 {
		h.arrived[1-s.End] = true
	}
	return []event{{s, o}}
}

func finish(p *pair, h *history, w wait) event {
	s := *h.pending[w.end][w.kind]
	h.pending[w.end][w.kind] = nil
	o := p.ends[w.end].finish(w.kind)
	h.count(s, o)
	return event{s, o}
}

func (h *history) count(s step, o outcome) {
	switch s.kind() {
	case reads:
		h.read[s.End] += o.N
	case writes:
		h.written[s.End] += o.N
	}
}

// drained returns when the WriteTos that wait have taken all that was written, for a
// Close would keep the rest from them.
func (h *history) drained(p *pair) {
	for e := range p.ends {
		for end := time.Now().Add(time.Second); h.drains(e) && time.Now().Before(end); {
			if p.ends[e].status().Taken >= h.written[1-e]-h.read[e] {
				break
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// choose says whether a call has to wait.
func (h *history) choose(p *pair, s step) mode {
	k := s.kind()
	switch {
	case h.dependsOnBuffers(p, s):
		return skipIt
	case k == never:
		return doIt
	case h.pending[s.End][k] != nil:
		return skipIt
	case h.closed[s.End], h.expired[s.End][k], s.Op == "Read" && s.N == 0:
		return doIt
	}
	switch st := p.ends[s.End].status(); s.Op {
	case "Read":
		if !st.Readable {
			return startIt
		}
	case "WriteTo":
		if !st.Ended {
			return startIt
		}
	case "Flood":
		if !st.Broken && !h.shut[s.End] {
			return startIt
		}
	}
	return doIt
}

// dependsOnBuffers says whether what a call returns depends on how much of a flood the
// buffers have taken. A kernel has the end of a connection wait behind that, for one.
func (h *history) dependsOnBuffers(p *pair, s step) bool {
	e, other := s.End, 1-s.End
	switch {
	case s.Op == "Flood" && h.drains(other), h.flooded[other] && h.ends(s) && p.ends[e].status().Unread == 0:
		return true
	case h.flooded[e] && h.shut[e] && h.ends(s):
		return h.linger0[e] || p.ends[e].status().Unread > 0
	case h.flooded[e] && s.kind() == writes, h.flooded[e] && h.shut[e] && (s.Op == "CloseWrite" || s.Op == "CloseRead"):
		return true
	case !h.flooded[other]:
		return false
	case s.Op == "WriteTo", s.Op == "CloseRead", s.Op == "CloseWrite" && h.readClosed[e]:
		return true
	}
	if s.kind() == reads {
		// A reset overtakes what the kernel has not sent. And after CloseRead there
		// is an end wherever the buffer is empty.
		return h.resets[other] || h.readClosed[e]
	}
	return (h.closed[other] || h.shut[other]) && (s.kind() == writes || s.Op == "CloseWrite")
}

// drains says whether an end reads all that comes.
func (h *history) drains(end int) bool {
	s := h.pending[end][reads]
	return s != nil && s.Op == "WriteTo"
}

// ends says whether a call closes its end.
func (h *history) ends(s step) bool {
	return s.Op == "Close" || s.Op == "CloseTwice" || s.Op == "Exit" || s.Op == "Kill"
}

// before notes what a call is about to do.
func (h *history) before(p *pair, s step, m mode) {
	e := s.End
	switch s.Op {
	case "Flood":
		h.flooded[e] = h.flooded[e] || m == startIt
	case "CloseWrite":
		h.shut[e] = true
	case "CloseRead":
		h.readClosed[e] = true
	case "SetLinger":
		if !h.closed[e] {
			h.linger0[e] = s.N == 0
		}
	}
	if h.ends(s) {
		if !h.closed[e] {
			h.resets[e] = h.linger0[e] && s.Op[0] == 'C' || p.ends[e].status().Unread > 0
		}
		h.closed[e] = true
	}
	for i, name := range []string{"SetDeadline", "SetReadDeadline", "SetWriteDeadline"} {
		for k := reads; k <= writes && !h.closed[e]; k++ {
			if i == 0 || i == int(k) {
				switch s.Op {
				case name + ":past", name + ":soon":
					h.expired[e][k] = true
				case name + ":none", name + ":far":
					h.expired[e][k] = false
				}
			}
		}
	}
}

// returns says whether a call that waits has to return now.
func (h *history) returns(p *pair, end int, k kind) bool {
	s := h.pending[end][k]
	if s == nil {
		return false
	}
	if h.closed[end] || h.expired[end][k] || k == writes && h.shut[end] {
		return true
	}
	switch st := p.ends[end].status(); {
	case s.Op == "Read":
		return st.Readable || st.State == 0 || h.arrived[end]
	case k == reads:
		return st.Ended
	default:
		return st.Broken
	}
}

const (
	established = 1
	finWait1    = 4
	finWait2    = 5
	tcpClose    = 7
)

// settle returns when the kernel has taken in at both ends what was sent. It is
// asked again and again, for it tells nobody.
func (h *history) settle(p *pair) {
	for end := time.Now().Add(time.Second); !h.settled(p) && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

func (h *history) settled(p *pair) bool {
	for e := range p.ends {
		if h.closed[e] {
			continue
		}
		st, other := p.ends[e].status(), 1-e
		ended := st.State != established && st.State != finWait1 && st.State != finWait2
		switch {
		case st.State == tcpClose:
		case h.closed[other] && h.resets[other],
			h.closed[other] && !h.flooded[other] && !ended,
			h.shut[other] && !h.flooded[other] && !ended,
			!h.flooded[e] && st.Unsent > 0:
			return false
		}
	}
	return true
}

// String tells events, for people.
func (e event) String() string { return fmt.Sprintf("%-34s = %s", e.step, e.outcome) }
