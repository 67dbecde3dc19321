package mux

import (
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// cork gathers the small frames that an event loop's handlers write while a
// batch of arrivals is handed out, so that several go as one message: one
// receive, one work request and one descriptor for all of them. The same is done
// with those that had to wait and go now.
// The link gathers them (link.Gather).
//
// A handler that takes long must not delay what others have written before it:
// corkWatch sends what has waited for one of its periods.
type cork struct {
	corks uint64 // how often the cork was begun anew; guarded by txMu

	// Of corkWatch.
	seen    uint64 // corks at the last look
	guarded atomic.Bool

	// Of the loop's goroutine.
	corked bool // handlers of a batch run, or streams that had to wait send
	slow   bool // those of the last batch took their time: their answers do not wait
}

const (
	corkFrames  = 8 // arrivals that are answered by one message
	corkMin     = 4 // arrivals for which it is worth it
	slowHandler = 5 * time.Microsecond
)

// sendSoon puts a frame into the cork. It returns false if it has to go the
// usual way.
func (m *Mux) sendSoon(w *sendHalf, p []byte) bool {
	m.txMu.Lock()
	defer m.txMu.Unlock()
	defer m.wakeShare()
	if w.err != nil || w.peerGone || m.txBlocked.Load() || w.window.Avail() < len(p) || m.allot(w, len(p)) < len(p) {
		return false
	}
	return m.gatherFrame(w, p)
}

// gatherFrame is sendSoon for a stream that may send. txMu is held.
func (m *Mux) gatherFrame(w *sendHalf, p []byte) bool {
	if !m.link.Gathers(len(p)) {
		return false
	}
	if m.link.Gathered() == 0 {
		m.corks++
		if !m.guarded.Load() {
			corkWatch.add(m)
		}
	}
	m.link.Gather(link.Header{Stream: w.st.id, Kind: FrameData, Flags: m.charge(w, len(p))}, p)
	m.leaveShare(w)
	m.framesOut++
	m.bytesOut += uint64(len(p))
	return true
}

// handOut tells the sinks of the events that came in one batch.
func (m *Mux) handOut() {
	if len(m.events) < corkMin {
		for i := range m.events {
			m.events[i].tell()
		}
		return
	}
	begin := time.Now()
	m.corked = !m.slow
	for i := range m.events {
		m.events[i].tell()
		if m.corked && i%corkFrames == corkFrames-1 {
			m.sendCork()
		}
	}
	if m.corked {
		m.corked = false
		m.sendCork()
	}
	m.slow = time.Since(begin) > time.Duration(len(m.events))*slowHandler
}

func (m *Mux) sendCork() {
	m.txMu.Lock()
	m.link.Flush()
	m.txMu.Unlock()
}
