//go:build amd64 || arm64

package ibverbs

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// marking is how requests that give no completion are known to be done. Most drivers free
// their slots when one behind them completes, and leave it to their users to ask for one.
// Where nobody has for half of the queue, one request is marked: it gives a completion, which
// takes a spare entry of the CQ, and nobody sees it unless the request has failed.
//
// A completion has the id of its request and nothing of ours, so a marked one is posted with
// markedID, and its own id is kept here. One of a QP is under way at a time.
type marking struct {
	spare bool // the QP has a spare entry
	run   int  // guarded by the send lock: requests since the last that completes
	// underWay is set by who posts, and cleared by who polls, or if the request was refused.
	underWay atomic.Bool
	id       uint64 // of the request under way, its own; written before underWay is set
}

// markedID is drawn so that no caller's is the same.
var markedID = rand.Uint64()

// mark marks a request with that id, if it is to be, before its completion can be seen. run is
// those since the last that completes, with it.
func (m *marking) mark(id uint64, run, half int) bool {
	if !m.spare || run < half || m.underWay.Load() {
		return false
	}
	m.id = id
	m.underWay.Store(true)
	return true
}

// refused is called when the request that was marked was not posted.
func (m *marking) refused() { m.underWay.Store(false) }

// completed is called with the completion of a marked request. It reports whether nobody is to
// see it, and gives one that has failed its id.
func (m *marking) completed(wc *verbs.WC) (unseen bool) {
	if !m.underWay.Load() {
		return false
	}
	wc.ID = m.id
	m.underWay.Store(false)
	return wc.Status == verbs.WCSuccess
}

func (m *marking) reset() {
	m.run = 0
	m.underWay.Store(false)
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
