//go:build amd64 || arm64

package ibverbs

import "sync/atomic"

// marking is how requests that give no completion are known to be done. Most drivers free
// their slots when one behind them completes, and leave it to their users to ask for one.
// Where nobody has for half of the queue, one request is marked: it gives a completion, which
// takes a spare entry of the CQ, and nobody sees it.
//
// A completion has the id of its request and nothing of ours, so a marked one is known by its
// place: requests complete in order.
type marking struct {
	spare bool   // the QP has a spare entry
	run   int    // guarded by the send lock: requests since the last that completes
	given uint64 // guarded by the send lock: requests posted that complete, marked ones too

	seen uint64 // guarded by mu of the send CQ: of these, those that have
	// place is that of the marked request among them, counted from 1; 0 if there is none.
	// It is written by who posts while it is 0, and else by who polls.
	place atomic.Uint64
}

// mark says whether the request is to be marked. run and given are those before it.
func (m *marking) mark(run, half int) bool {
	return m.spare && run >= half && m.place.Load() == 0
}

// completed counts a completion of a request, and reports whether it is that of a marked
// one.
func (m *marking) completed() (marked bool) {
	m.seen++
	if marked = m.place.Load() == m.seen; marked {
		m.place.Store(0)
	}
	return marked
}

func (m *marking) reset() {
	m.run, m.given, m.seen = 0, 0, 0
	m.place.Store(0)
}

// spareEntries is how many entries a CQ has beside those that were asked for. A QP takes
// one. Where all are taken, requests of a further QP are not marked: its program has to ask for a
// completion before its queue is full, as with the library itself. A large CQ is for many
// QPs, and has a quarter more.
func spareEntries(cqe int) int { return max(64, cqe/4) }

// borrow takes one of the spare entries for a QP.
func (c *cq) borrow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lent == c.spare {
		return false
	}
	c.lent++
	return true
}

// giveBack is for a QP that is gone. The caller holds mu of the CQ.
func (m *marking) giveBack(c *cq) {
	if m.spare {
		c.lent--
		m.spare = false
	}
}
