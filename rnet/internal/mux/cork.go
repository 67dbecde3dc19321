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
	begun uint64 // how often the cork was begun anew; guarded by the send lock

	// Of corkWatch.
	seen    uint64 // begun at the last look
	guarded atomic.Bool

	// Of the loop's goroutine: handlers of a batch run, or streams that had to wait send.
	on bool
}

const (
	corkFrames  = 8 // arrivals that are answered by one message
	corkMin     = 4 // arrivals for which it is worth it
	slowHandler = 5 * time.Microsecond
)

// sendSoon puts a frame into the cork. It returns false if it has to go the
// usual way.
func (s *sender) sendSoon(w *sendHalf, p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.share.wake()
	if w.err != nil || w.peerGone || s.blocked.Load() || w.window.Avail() < len(p) || s.share.allot(w, len(p)) < len(p) {
		return false
	}
	return s.gatherFrame(w, p)
}

// gatherFrame is sendSoon for a stream that may send. mu is held.
func (s *sender) gatherFrame(w *sendHalf, p []byte) bool {
	if !s.link.Gathers(len(p)) {
		return false
	}
	if s.link.Gathered() == 0 {
		s.cork.begun++
		if !s.cork.guarded.Load() {
			corkWatch.add(s)
		}
	}
	s.link.Gather(link.Header{Stream: w.st.id, Kind: FrameData, Flags: s.share.charge(w, len(p))}, p)
	s.share.leave(w)
	s.frames++
	s.bytes += uint64(len(p))
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
	m.out.cork.on = !m.slow
	for i := range m.events {
		m.events[i].tell()
		if m.out.cork.on && i%corkFrames == corkFrames-1 {
			m.out.sendCork()
		}
	}
	if m.out.cork.on {
		m.out.cork.on = false
		m.out.sendCork()
	}
	m.slow = time.Since(begin) > time.Duration(len(m.events))*slowHandler
}

func (s *sender) sendCork() {
	s.mu.Lock()
	s.link.Flush()
	s.mu.Unlock()
}
