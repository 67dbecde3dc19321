package rnet

// awaitDone puts c among those that the leader wakes when the device has done
// so many WRs. It returns false if there is nothing to wait for.
func (s *session) awaitDone(c *Conn, until uint64) bool {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	c.sentAt = until
	s.sentWait.push(c, sentLink)
	s.sentBlocked.Store(true)
	if s.sqDone.Load() >= until || s.txDead { // see sentBlocked
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

// wakeDone is called by the leader after completions came that somebody waits
// for.
func (s *session) wakeDone() {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	done := s.sqDone.Load()
	for c := s.sentWait.first(); c != nil; {
		next := c.links[sentLink].next
		if c.sentAt <= done {
			s.sentWait.remove(c, sentLink)
			c.wakeWriter()
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
	if !s.onWire || s.failed.Load() {
		return false
	}
	s.look()
	s.txMu.Lock()
	defer s.txMu.Unlock()
	return !s.txDead && s.sqDone.Load() < s.lastFin
}
