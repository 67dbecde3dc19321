package rnet

// sendMark is a place in what a session sends: it is reached when the device
// has done so many WRs, and so many probes have come back.
type sendMark struct{ wrs, probes uint64 }

func (s *session) reached(m sendMark) bool {
	return s.sqDone.Load() >= m.wrs && s.probesDone.Load() >= m.probes
}

// awaitDone puts c among those that the leader wakes when the mark is reached.
// It returns false if there is nothing to wait for.
func (s *session) awaitDone(c *Conn, until sendMark) bool {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	c.sentAt = until
	s.sentWait.push(c, sentLink)
	s.sentBlocked.Store(true)
	if s.reached(until) || s.txDead { // see sentBlocked
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
	for c := s.sentWait.first(); c != nil; {
		next := c.links[sentLink].next
		if s.reached(c.sentAt) {
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
	s.pollLock.Look()
	s.txMu.Lock()
	defer s.txMu.Unlock()
	return !s.txDead && !s.reached(s.lastFin)
}
