package rnet

import (
	"net"

	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// loopStream is a Conn as its event loop uses it.
type loopStream Conn

// Write sends as much of p as there is room for; if that is not all, Writable
// follows.
func (st *loopStream) Write(p []byte) (n int, err error) {
	c := (*Conn)(st)
	if c.s.corked && len(p) > 0 && !c.inLine && c.s.sendSoon(c, p) {
		return len(p), nil
	}
	for n < len(p) {
		m, result, err := c.s.send(c, p[n:], nil, 0)
		if result == sendFailed {
			c.inLine = false
			return n, err
		}
		n += m
		c.inLine = result == sendRoom || result == sendShare
		if result == sendOK {
			continue
		}
		c.send.wait.Begin()
		if c.send.mayWait(result) {
			return n, nil // unblock tells when
		}
	}
	return n, nil
}

// Flush sends what handlers of the batch have written.
func (st *loopStream) Flush() {
	if s := (*Conn)(st).s; s.corked {
		s.sendCork()
	}
}

// Close ends the stream without a wait, by a reset if something has come that its
// sink was not told of.
func (st *loopStream) Close(reset bool) {
	c := (*Conn)(st)
	if c.closed.Swap(true) {
		return
	}
	unread := c.recv.drop() || c.untold > 0
	if c.inLine {
		c.inLine = false
		c.s.leaveLine(c)
	}
	c.send.fail(net.ErrClosed)
	if reset || unread {
		c.s.control(c, ctlReset)
	} else {
		c.s.control(c, ctlFin)
	}
}

func (st *loopStream) LocalAddr() net.Addr  { return (*Conn)(st).LocalAddr() }
func (st *loopStream) RemoteAddr() net.Addr { return (*Conn)(st).RemoteAddr() }

// attach gives c, which was dialed on a session of the loop, its sink, and
// tells it what has come before. The loop calls it.
func (c *Conn) attach(makeSink func(loop.Stream) loop.Sink) loop.Stream {
	st := (*loopStream)(c)
	c.setSink(makeSink(st))
	c.sink.Opened()
	c.recv.mu.Lock()
	early := c.recv.queue
	c.recv.queue = chunkQueue{}
	end := c.recv.err
	c.recv.mu.Unlock()
	for early.head != nil {
		k := early.pop()
		if !c.closed.Load() {
			c.sink.Readable(k.unread())
		}
		c.consumeLoop(len(k.unread()))
		k.recycle()
	}
	if end != nil && !c.closed.Load() {
		c.sink.Ended(end)
	}
	return st
}
