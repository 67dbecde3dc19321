package rnet

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// looped is the part of a session that an event loop serves. Its loop owns the
// poll lock for good: who waits on one of its streams parks. Poll notes what came for which
// stream, and the loop tells the sinks after that (dispatch), before it
// releases what was told. See docs/gnet.md.
type looped struct {
	poller   *poller       // nil: who waits polls; set before the session starts
	unlooped atomic.Bool   // the loop has handed the session back
	handed   chan struct{} // closed then

	// Guarded by the poll lock.
	events    []loopEvent
	collected int // bytes in them
	batch     int // completions that a poll takes

	// Of the loop's goroutine.
	quiet int // polls in a row that brought nothing

	// cold says that the loop does not poll the session: it is armed. Who
	// takes it back rings the loop.
	cold atomic.Bool

	cork

	unblockMu sync.Mutex
	unblocked []*Conn // may write again; guarded by unblockMu
	unblocks  atomic.Bool
}

// loopEvent is something that the sink of c is to be told.
type loopEvent struct {
	c     *Conn
	p     []byte // a piece of the ring
	opens bool
	err   error // the end
}

// onLoop reports whether a loop polls the session.
func (s *session) onLoop() bool { return s.poller != nil && !s.unlooped.Load() }

// setLoop gives the session to a loop. It comes before the session starts.
func (s *session) setLoop(p *poller) {
	if p == nil {
		return
	}
	s.poller, s.handed = p, make(chan struct{})
}

// noteEvent puts an event on the list. The loop calls it, as owner of the poll lock.
func (s *session) noteEvent(e loopEvent) { s.events = append(s.events, e) }

// noteEnd tells the sink of c, if it has one, that its stream has come to an
// end. The loop calls it if there is a sink.
func (c *Conn) noteEnd(err error) {
	if c.sink != nil && !c.closed.Load() {
		c.s.noteEvent(loopEvent{c: c, err: err})
	}
}

// takeLoop is deliver for a stream of a loop: the payload stays where it is. A
// stream that was not attached yet keeps a copy. The receive half's mu is held.
func (c *Conn) takeLoop(payload []byte) {
	if c.sink == nil {
		c.recv.queue.appendCopy(payload)
		return
	}
	c.s.collected += len(payload)
	c.untold += len(payload)
	c.s.noteEvent(loopEvent{c: c, p: payload})
}

// loopAccepts gives a stream that the peer has opened to the loop. The owner of the poll lock
// calls it.
func (s *session) loopAccepts(c *Conn) bool {
	sink := s.poller.owner.Accept((*loopStream)(c))
	if sink == nil {
		return false
	}
	c.setSink(sink)
	if s.onOpen != nil {
		s.onOpen()
	}
	s.noteEvent(loopEvent{c: c, opens: true})
	return true
}

// setSink gives the stream who is told of what happens. The loop calls it, which
// owns the poll lock and reads sink without another lock; statistics take its mu.
func (c *Conn) setSink(sink loop.Sink) {
	c.recv.mu.Lock()
	c.sink = sink
	c.recv.mu.Unlock()
}

// dispatch tells the sinks what the last poll has brought, and releases it. The
// loop calls it, with no other lock held.
func (s *session) dispatch() {
	if len(s.events) > 0 {
		s.handOut()
		s.fitBatch()
		clear(s.events)
		s.events = s.events[:0]
	}
	if err := s.link.Release(); err != nil {
		s.fail(err)
	}
	if s.unblocks.Load() {
		s.tellUnblocked()
	}
}

// tell tells the sink of an event.
func (e *loopEvent) tell() {
	switch c := e.c; {
	case c.closed.Load(): // by its sink, or before it was told
		if e.p != nil {
			c.consumeLoop(len(e.p))
		}
	case e.opens:
		c.sink.Opened()
	case e.err != nil:
		c.sink.Ended(e.err)
	default:
		c.untold -= len(e.p)
		c.sink.Readable(e.p)
		c.consumeLoop(len(e.p))
	}
}

// fitBatch keeps what one poll takes to a part of the ring, so that the peer
// can go on writing while it is handled.
func (s *session) fitBatch() {
	if s.collected > s.link.RingSize()/8 {
		s.batch = max(1, s.batch/2)
	} else if s.collected < s.link.RingSize()/32 {
		s.batch = min(link.PollBatch, 2*s.batch)
	}
	s.collected = 0
}

// consumeLoop moves the window over n bytes that the sink has had.
func (c *Conn) consumeLoop(n int) {
	c.recv.mu.Lock()
	c.recv.flow.Consume(n)
	bits := c.recv.settle(c.recv.err == nil && !c.closed.Load())
	c.recv.mu.Unlock()
	if bits != 0 {
		c.s.control(c, bits)
	}
}

// unblock lets the loop go on to write on c. It is wakeWriter for streams of
// a loop: any goroutine calls it, with locks held.
func (s *session) unblock(c *Conn) {
	if !c.send.wait.Take() {
		if c.send.wait.Parked() { // a Close that lingers, of a stream that was never attached
			s.pollLock.Wake(&c.send.wait)
		}
		return
	}
	s.unblockMu.Lock()
	s.unblocked = append(s.unblocked, c)
	s.unblocks.Store(true)
	s.unblockMu.Unlock()
	s.warm() // after the list: see cool and Doze
	if s.poller.dozing.Load() == s {
		s.poller.owner.Ring()
	}
}

// tellUnblocked lets streams write that may. What blocks again meanwhile is
// left for the next time.
func (s *session) tellUnblocked() {
	s.unblockMu.Lock()
	list := s.unblocked
	s.unblocked = nil
	s.unblocks.Store(false)
	s.unblockMu.Unlock()
	s.corked = true
	for _, c := range list {
		if c.sink != nil && !c.closed.Load() {
			c.sink.Writable()
		}
	}
	s.corked = false
	s.txMu.Lock()
	s.link.Flush()
	if s.txBlocked.Load() {
		s.wakeLine() // those who were woken have left that to us
	}
	s.txMu.Unlock()
}

// warm makes the loop poll the session again if it does not.
func (s *session) warm() {
	if s.cold.Load() && s.cold.CompareAndSwap(true, false) {
		s.poller.wake(s)
	}
}

// finishLoop is what the loop does with a session that fails: what arrived
// before is delivered, and each stream is told.
func (s *session) finishLoop() {
	for s.poll() > 0 {
		s.dispatch()
	}
	s.dispatch()
	for _, c := range s.streams.shutNow() {
		c.abort(syscall.ECONNRESET)
	}
	s.dispatch()
	s.handBack()
}

// handBack ends the loop's part: the session's engine polls from here on. The
// loop has closed its streams.
func (s *session) handBack() {
	s.unlooped.Store(true)
	for _, c := range s.streams.list() {
		if c.sink != nil {
			(*loopStream)(c).Close(true) // the loop was never told of it
		}
	}
	clear(s.events)
	s.events = nil
	s.batch = link.PollBatch
	s.pollLock.Hand()
	close(s.handed)
}

// leaveLoop waits until the loop has handed a failed session back.
func (s *session) leaveLoop() {
	if s.poller == nil {
		return
	}
	s.warm()
	<-s.handed // ended by the loop's next turn, or its end
}
