package mux

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// looped is the part of a mux that an event loop serves. Its loop owns the
// poll lock for good: who waits on one of its streams parks. Poll notes what came for which
// stream, and the loop tells the sinks after that (dispatch), before it
// releases what was told. See docs/gnet.md.
type looped struct {
	ended  atomic.Bool   // the loop has handed the session back
	handed chan struct{} // closed then

	// Guarded by the poll lock.
	events    []loopEvent
	collected int // bytes in them
	batch     int // completions that a poll takes

	// Of the loop's goroutine.
	quiet int  // polls in a row that brought nothing
	slow  bool // the handlers of the last batch took their time: their answers do not wait

	// cold says that the loop does not poll the session: it is armed. Who
	// takes it back wakes the loop.
	cold atomic.Bool

	engine atomic.Uint32 // where it is, see engineWaits

	mu        sync.Mutex
	unblocked []*Stream // may write again; guarded by mu
	unblocks  atomic.Bool
}

// The values of looped.engine. The loop asks for the first change, the engine makes the second, and
// all others are the loop's.
const (
	engineWaits  uint32 = iota // at the channel
	engineLeaves               // the same, and rests after the next event: the loop wants to wait there
	engineRests                // until the loop calls it
	engineServes               // the session, which is not the loop's any more
)

// loopEvent is something that the sink of st is to be told.
type loopEvent struct {
	st    *Stream
	p     []byte // a piece of the ring
	opens bool
	err   error // the end
}

// onLoop reports whether a loop polls the session.
func (m *Mux) onLoop() bool { return m.cfg.Poller != nil && !m.loop.ended.Load() }

// note puts an event on the list. The loop calls it, as owner of the poll lock.
func (l *looped) note(e loopEvent) { l.events = append(l.events, e) }

// noteEnd puts the end of st on the list, if st has a sink: then the caller is the loop.
func (st *Stream) noteEnd(err error) {
	if st.sink != nil && !st.closed.Load() {
		st.m.loop.note(loopEvent{st: st, err: err})
	}
}

// takeLoop is deliver for a stream of a loop: the payload stays where it is. A
// stream that was not attached yet keeps a copy. The receive half's mu is held.
func (st *Stream) takeLoop(payload []byte) {
	if st.sink == nil {
		st.recv.queue.appendCopy(payload)
		return
	}
	st.m.loop.collected += len(payload)
	st.untold += len(payload)
	st.m.loop.note(loopEvent{st: st, p: payload})
}

// acceptLoop gives the stream, which the peer has opened, to the loop. The owner of the poll
// lock calls it.
func (st *Stream) acceptLoop() bool {
	sink := st.m.cfg.Poller.owner.Accept((*LoopStream)(st))
	if sink == nil {
		return false
	}
	st.setSink(sink)
	st.m.user.Served()
	st.m.loop.note(loopEvent{st: st, opens: true})
	return true
}

// setSink sets the stream's sink. The loop calls it, which owns the poll lock and reads
// sink without another lock; statistics take recv.mu.
func (st *Stream) setSink(sink Sink) {
	st.recv.mu.Lock()
	st.sink = sink
	st.recv.mu.Unlock()
}

// dispatch tells the sinks what the last poll has brought, and then releases that part of
// the ring. The loop calls it, with no lock but the poll lock held.
func (m *Mux) dispatch() {
	if len(m.loop.events) > 0 {
		m.loop.handOut(&m.out)
		m.loop.fitBatch(m.link.RingSize())
	}
	if err := m.link.Release(); err != nil {
		m.Fail(err)
	}
	if m.loop.unblocks.Load() {
		m.loop.tellUnblocked(&m.out)
	}
}

// tell tells the sink of an event.
func (e *loopEvent) tell() {
	switch st := e.st; {
	case st.closed.Load(): // by its sink, or before it was told
		if e.p != nil {
			st.recv.release(len(e.p))
		}
	case e.opens:
		st.sink.Opened()
	case e.err != nil:
		st.sink.Ended(e.err)
	default:
		st.untold -= len(e.p)
		st.sink.Readable(e.p)
		st.recv.release(len(e.p))
	}
}

// handOut tells the sinks of the events that came in one batch, which gather what they
// write in the cork of out.
func (l *looped) handOut(out *sender) {
	corked := len(l.events) >= corkMin
	var begin time.Time
	if corked {
		begin = time.Now()
		out.cork.on = !l.slow
	}
	for i := range l.events {
		l.events[i].tell()
		if out.cork.on && i%corkFrames == corkFrames-1 {
			out.sendCork()
		}
	}
	if out.cork.on {
		out.cork.on = false
		out.sendCork()
	}
	if corked {
		l.slow = time.Since(begin) > time.Duration(len(l.events))*slowHandler
	}
	clear(l.events)
	l.events = l.events[:0]
}

// fitBatch keeps what one poll takes to a part of the ring, so that the peer
// can go on writing while it is handled.
func (l *looped) fitBatch(ringSize int) {
	if l.collected > ringSize/8 {
		l.batch = max(1, l.batch/2)
	} else if l.collected < ringSize/32 {
		l.batch = min(link.PollBatch, 2*l.batch)
	}
	l.collected = 0
}

// idleEvents is how many events the list of a session that rests has room for: a peer can fill the ring
// with frames that are smaller than what is noted of them.
const idleEvents = 256

// fitEvents gives a long list back, if there is nothing in it.
func (l *looped) fitEvents() {
	if len(l.events) == 0 && cap(l.events) > idleEvents {
		l.events = nil
	}
}

// unblock puts st on the list of streams on which the loop may go on to write. Any
// goroutine calls it, with locks held.
func (m *Mux) unblock(st *Stream) {
	if !m.pollLock.WakeOrTake(&st.send.wait) { // a Close that lingers, perhaps, of a stream that was never attached
		return
	}
	m.loop.mu.Lock()
	m.loop.unblocked = append(m.loop.unblocked, st)
	m.loop.unblocks.Store(true)
	m.loop.mu.Unlock()
	m.cfg.Poller.warm(m) // after the list: see cool and Sleep
	if m.cfg.Poller.sleeping.Load() == m {
		m.cfg.Poller.owner.Wake()
	}
}

// tellUnblocked calls Writable for the streams on the list. Streams that block again
// meanwhile are left for the next time.
func (l *looped) tellUnblocked(out *sender) {
	l.mu.Lock()
	list := l.unblocked
	l.unblocked = nil
	l.unblocks.Store(false)
	l.mu.Unlock()
	out.cork.on = true
	for _, st := range list {
		if st.sink != nil && !st.closed.Load() {
			st.sink.Writable()
		}
	}
	out.cork.on = false
	out.sendCork()
	if out.blocked.Load() {
		out.creditCame() // a send that gathers its frame does not wake the next in the queue
	}
}

// handBack ends the loop's part: the session's engine polls from here on. The
// loop has closed its streams.
func (m *Mux) handBack() {
	m.loop.ended.Store(true)
	for _, st := range m.streams.list() {
		if st.sink != nil {
			(*LoopStream)(st).Close(true) // the loop was never told of it
		}
	}
	m.loop.events = nil
	m.loop.batch = link.PollBatch
	if m.loop.engine.Swap(engineServes) == engineRests {
		m.pollLock.Rested()
	}
	m.pollLock.Release()
	close(m.loop.handed)
}
