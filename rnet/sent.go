package rnet

import "github.com/seed-b9b531af/ramjet/rnet/internal/link"

// awaitDone puts c among those that the owner of the poll lock wakes when the mark is reached.
// It returns false if there is nothing to wait for.
func (s *session) awaitDone(c *Conn, until link.Mark) bool {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	c.send.sentAt = until
	s.sentWait.push(c, sentLink)
	s.sentBlocked.Store(true)
	if s.link.Reached(until) || s.link.Stopped() { // see sentBlocked
		s.sentWait.remove(c, sentLink)
		return false
	}
	return true
}

// forgetDone takes c out again, when something else has woken it.
func (s *session) forgetDone(c *Conn) {
	s.txMu.Lock()
	s.sentWait.remove(c, sentLink)
	s.txMu.Unlock()
}

// wakeDone is called by the owner of the poll lock after completions came that somebody waits
// for.
func (s *session) wakeDone() {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	for c := s.sentWait.first(); c != nil; {
		next := c.send.links[sentLink].next
		if s.link.Reached(c.send.sentAt) {
			s.sentWait.remove(c, sentLink)
			c.send.wake()
		}
		c = next
	}
	if s.sentWait.empty() {
		s.sentBlocked.Store(false)
	}
}

// underWay reports whether the end of a stream may not have reached the peer
// yet. A session on the wire must not end before.
func (s *session) underWay() bool {
	if !s.link.OnWire() || s.failed.Load() {
		return false
	}
	s.pollLock.Look()
	s.txMu.Lock()
	defer s.txMu.Unlock()
	return !s.link.Stopped() && !s.link.Reached(s.lastFin)
}
