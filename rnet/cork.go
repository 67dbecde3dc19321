package rnet

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
// A handler that takes long must not keep back what others have written before:
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
func (s *session) sendSoon(c *Conn, p []byte) bool {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	defer s.wakeShare()
	if c.send.err != nil || c.send.peerGone || s.txBlocked.Load() || c.send.window.Avail() < len(p) || s.allot(c, len(p)) < len(p) {
		return false
	}
	return s.gatherFrame(c, p)
}

// gatherFrame is sendSoon for a stream that may send. txMu is held.
func (s *session) gatherFrame(c *Conn, p []byte) bool {
	if !s.link.Gathers(len(p)) {
		return false
	}
	if s.link.Gathered() == 0 {
		s.corks++
		if !s.guarded.Load() {
			corkWatch.add(s)
		}
	}
	s.link.Gather(link.Header{Stream: c.id, Kind: frameData, Flags: s.charge(c, len(p))}, p)
	s.leaveShare(c)
	s.framesOut++
	s.bytesOut += uint64(len(p))
	return true
}

// handOut tells the sinks of the events that came in one batch.
func (s *session) handOut() {
	if len(s.events) < corkMin {
		for i := range s.events {
			s.events[i].tell()
		}
		return
	}
	begin := time.Now()
	s.corked = !s.slow
	for i := range s.events {
		s.events[i].tell()
		if s.corked && i%corkFrames == corkFrames-1 {
			s.sendCork()
		}
	}
	if s.corked {
		s.corked = false
		s.sendCork()
	}
	s.slow = time.Since(begin) > time.Duration(len(s.events))*slowHandler
}

func (s *session) sendCork() {
	s.txMu.Lock()
	s.link.Flush()
	s.txMu.Unlock()
}
