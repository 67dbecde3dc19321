package mux

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// looped is the part of a session that an event loop serves. Its loop owns the
// poll lock for good: who waits on one of its streams parks. Poll notes what came for which
// stream, and the loop tells the sinks after that (dispatch), before it
// releases what was told. See docs/gnet.md.
type looped struct {
	Poller   *Poller       // nil: who waits polls; set before the session starts
	unlooped atomic.Bool   // the loop has handed the session back
	handed   chan struct{} // closed then

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

	unblockMu sync.Mutex
	unblocked []*Stream // may write again; guarded by unblockMu
	unblocks  atomic.Bool
}

// loopEvent is something that the sink of st is to be told.
type loopEvent struct {
	st    *Stream
	p     []byte // a piece of the ring
	opens bool
	err   error // the end
}

// onLoop reports whether a loop polls the session.
func (m *Mux) onLoop() bool { return m.cfg.Poller != nil && !m.unlooped.Load() }

// noteEvent puts an event on the list. The loop calls it, as owner of the poll lock.
func (m *Mux) noteEvent(e loopEvent) { m.events = append(m.events, e) }

// noteEnd puts the end of st on the list, if st has a sink: then the caller is the loop.
func (st *Stream) noteEnd(err error) {
	if st.sink != nil && !st.closed.Load() {
		st.m.noteEvent(loopEvent{st: st, err: err})
	}
}

// takeLoop is deliver for a stream of a loop: the payload stays where it is. A
// stream that was not attached yet keeps a copy. The receive half's mu is held.
func (st *Stream) takeLoop(payload []byte) {
	if st.sink == nil {
		st.recv.queue.appendCopy(payload)
		return
	}
	st.m.collected += len(payload)
	st.untold += len(payload)
	st.m.noteEvent(loopEvent{st: st, p: payload})
}

// loopAccepts gives a stream that the peer has opened to the loop. The owner of the poll lock
// calls it.
func (m *Mux) loopAccepts(st *Stream) bool {
	sink := m.cfg.Poller.owner.Accept((*LoopStream)(st))
	if sink == nil {
		return false
	}
	st.setSink(sink)
	m.user.Served()
	m.noteEvent(loopEvent{st: st, opens: true})
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
	if len(m.events) > 0 {
		m.handOut()
		m.fitBatch()
		clear(m.events)
		m.events = m.events[:0]
	}
	if err := m.link.Release(); err != nil {
		m.Fail(err)
	}
	if m.unblocks.Load() {
		m.tellUnblocked()
	}
}

// tell tells the sink of an event.
func (e *loopEvent) tell() {
	switch st := e.st; {
	case st.closed.Load(): // by its sink, or before it was told
		if e.p != nil {
			st.consumeLoop(len(e.p))
		}
	case e.opens:
		st.sink.Opened()
	case e.err != nil:
		st.sink.Ended(e.err)
	default:
		st.untold -= len(e.p)
		st.sink.Readable(e.p)
		st.consumeLoop(len(e.p))
	}
}

// fitBatch keeps what one poll takes to a part of the ring, so that the peer
// can go on writing while it is handled.
func (m *Mux) fitBatch() {
	if m.collected > m.link.RingSize()/8 {
		m.batch = max(1, m.batch/2)
	} else if m.collected < m.link.RingSize()/32 {
		m.batch = min(link.PollBatch, 2*m.batch)
	}
	m.collected = 0
}

// consumeLoop moves the window over n bytes that the sink has had.
func (st *Stream) consumeLoop(n int) {
	st.recv.mu.Lock()
	st.recv.flow.Consume(n)
	bits := st.recv.settle(st.recv.err == nil && !st.closed.Load())
	st.recv.mu.Unlock()
	st.control(bits)
}

// unblock puts st on the list of streams on which the loop may go on to write. Any
// goroutine calls it, with locks held.
func (m *Mux) unblock(st *Stream) {
	if !st.send.wait.Take() {
		if st.send.wait.Parked() { // a Close that lingers, of a stream that was never attached
			m.pollLock.Wake(&st.send.wait)
		}
		return
	}
	m.unblockMu.Lock()
	m.unblocked = append(m.unblocked, st)
	m.unblocks.Store(true)
	m.unblockMu.Unlock()
	m.warm() // after the list: see cool and Sleep
	if m.cfg.Poller.sleeping.Load() == m {
		m.cfg.Poller.owner.Wake()
	}
}

// tellUnblocked calls Writable for the streams on the list. Streams that block again
// meanwhile are left for the next time.
func (m *Mux) tellUnblocked() {
	m.unblockMu.Lock()
	list := m.unblocked
	m.unblocked = nil
	m.unblocks.Store(false)
	m.unblockMu.Unlock()
	m.out.cork.on = true
	for _, st := range list {
		if st.sink != nil && !st.closed.Load() {
			st.sink.Writable()
		}
	}
	m.out.cork.on = false
	m.out.mu.Lock()
	m.link.Flush()
	if m.out.blocked.Load() {
		m.out.wakeQueue() // a send that gathers its frame does not wake the next in the queue
	}
	m.out.mu.Unlock()
}

// warm makes the loop poll the session again if it does not.
func (m *Mux) warm() {
	if m.cold.Load() && m.cold.CompareAndSwap(true, false) {
		m.cfg.Poller.wake(m)
	}
}

// finishLoop is what the loop does with a session that fails: what arrived
// before is delivered, and each stream is told.
func (m *Mux) finishLoop() {
	for m.poll() > 0 {
		m.dispatch()
	}
	m.dispatch()
	for _, st := range m.streams.shutNow() {
		st.abort(syscall.ECONNRESET)
	}
	m.dispatch()
	m.handBack()
}

// handBack ends the loop's part: the session's engine polls from here on. The
// loop has closed its streams.
func (m *Mux) handBack() {
	m.unlooped.Store(true)
	for _, st := range m.streams.list() {
		if st.sink != nil {
			(*LoopStream)(st).Close(true) // the loop was never told of it
		}
	}
	clear(m.events)
	m.events = nil
	m.batch = link.PollBatch
	m.pollLock.Release()
	close(m.handed)
}

// leaveLoop waits until the loop has handed a failed session back.
func (m *Mux) leaveLoop() {
	if m.cfg.Poller == nil {
		return
	}
	m.warm()
	<-m.handed // ended by the loop's next iteration, or its end
}
