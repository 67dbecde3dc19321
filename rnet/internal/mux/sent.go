package mux

import "github.com/seed-b9b531af/ramjet/rnet/internal/link"

// awaitDone puts w among those that the owner of the poll lock wakes when the mark is reached.
// It returns false if there is nothing to wait for.
func (m *Mux) awaitDone(w *sendHalf, until link.Mark) bool {
	m.txMu.Lock()
	defer m.txMu.Unlock()
	w.sentAt = until
	m.sentWait.push(w, sentLink)
	m.sentBlocked.Store(true)
	if m.link.Reached(until) || m.link.Stopped() { // see sentBlocked
		m.sentWait.remove(w, sentLink)
		return false
	}
	return true
}

// forgetDone takes w out again, when something else has woken it.
func (m *Mux) forgetDone(w *sendHalf) {
	m.txMu.Lock()
	m.sentWait.remove(w, sentLink)
	m.txMu.Unlock()
}

// wakeDone is called by the owner of the poll lock after completions came that somebody waits
// for.
func (m *Mux) wakeDone() {
	m.txMu.Lock()
	defer m.txMu.Unlock()
	for w := m.sentWait.first(); w != nil; {
		next := w.links[sentLink].next
		if m.link.Reached(w.sentAt) {
			m.sentWait.remove(w, sentLink)
			w.wake()
		}
		w = next
	}
	if m.sentWait.empty() {
		m.sentBlocked.Store(false)
	}
}

// underWay reports whether the end of a stream may not have reached the peer
// yet. A session on the wire must not end before.
func (m *Mux) underWay() bool {
	if !m.link.OnWire() || m.failed.Load() {
		return false
	}
	m.pollLock.Look()
	m.txMu.Lock()
	defer m.txMu.Unlock()
	return !m.link.Stopped() && !m.link.Reached(m.lastFin)
}
