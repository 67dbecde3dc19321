package mux

import (
	"net/netip"
)

// LoopStream is a stream as its event loop uses it.
type LoopStream Stream

// Write sends as much of p as there is room for; if that is not all, Writable
// follows.
func (st *LoopStream) Write(p []byte) (n int, err error) {
	s := (*Stream)(st)
	if s.m.out.cork.on && len(p) > 0 && !s.inLine && s.m.out.sendSoon(&s.send, p) {
		return len(p), nil
	}
	for n < len(p) {
		m, result, err := s.m.out.send(&s.send, p[n:], nil, 0)
		if result == sendFailed {
			s.inLine = false
			return n, err
		}
		n += m
		s.inLine = result == sendRoom || result == sendShare
		if result == sendOK {
			continue
		}
		s.send.wait.Begin()
		if s.send.mayWait(result) {
			return n, nil // unblock tells when
		}
	}
	return n, nil
}

// Flush sends what handlers of the batch have written.
func (st *LoopStream) Flush() {
	if m := st.m; m.out.cork.on {
		m.out.sendCork()
	}
}

// Close ends the stream without a wait, by a reset if something has come that its
// sink was not told of.
func (st *LoopStream) Close(reset bool) {
	s := (*Stream)(st)
	if s.closed.Swap(true) {
		return
	}
	read, unread := s.recv.drop()
	if s.inLine {
		s.inLine = false
		s.m.out.leaveQueue(&s.send)
	}
	end := ctlClose
	if reset || unread || s.untold > 0 {
		end = ctlReset
	}
	s.send.close(end, read)
}

// LocalAddr returns the address of our end.
func (st *LoopStream) LocalAddr() netip.AddrPort { return (*Stream)(st).LocalAddr() }

// RemoteAddr returns the address of the peer's end.
func (st *LoopStream) RemoteAddr() netip.AddrPort { return (*Stream)(st).RemoteAddr() }

// attach gives the stream, which was dialed on a session of the loop, its sink, and
// tells it what has come before. The loop calls it.
func (st *Stream) attach(makeSink func(*LoopStream) Sink) {
	st.setSink(makeSink((*LoopStream)(st)))
	st.sink.Opened()
	st.recv.mu.Lock()
	early := st.recv.queue
	st.recv.queue = chunkQueue{}
	end := st.recv.err
	st.recv.mu.Unlock()
	for k := early.head; k != nil; k = k.next {
		st.untold += len(k.Unread())
	}
	for early.head != nil {
		k := early.pop()
		if !st.closed.Load() {
			st.untold -= len(k.Unread())
			st.sink.Readable(k.Unread())
		}
		st.recv.release(len(k.Unread()))
		k.Recycle()
	}
	if end != nil && !st.closed.Load() {
		st.sink.Ended(end)
	}
}
