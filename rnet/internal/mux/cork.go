package mux

import (
	"sync"
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

// sendCork sends what is in the cork.
func (s *sender) sendCork() {
	s.mu.Lock()
	s.link.Flush()
	s.mu.Unlock()
}

// corkWatch looks after sessions whose event loops gather small frames: what has
// waited from one look to the next, because a handler takes long, it sends. Its
// goroutine lives only while such sessions are busy, so that the loop itself need
// not look at the clock after each handler, and could not while one runs.
var corkWatch corkList

const corkPeriod = time.Millisecond

type corkList struct {
	mu      sync.Mutex
	entries []*sender // guarded by mu
	running bool      // guarded by mu
}

// add begins to look after a session. It comes before a frame is put into the
// cork; the session's send lock is held.
func (w *corkList) add(s *sender) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.cork.guarded.Swap(true) {
		return
	}
	w.entries = append(w.entries, s)
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *corkList) run() {
	var list []*sender
	for {
		time.Sleep(corkPeriod)
		w.mu.Lock()
		list = append(list[:0], w.entries...)
		clear(w.entries)
		w.entries = w.entries[:0]
		w.mu.Unlock()
		left := list[:0]
		for _, s := range list {
			if s.sendOldCork() {
				left = append(left, s)
			}
		}
		w.mu.Lock()
		w.entries = append(w.entries, left...)
		clear(list)
		w.running = len(w.entries) > 0
		running := w.running
		w.mu.Unlock()
		if !running {
			return
		}
	}
}

// sendOldCork sends what has been in the cork since the last look. It returns
// false, and looks after the session no more, if nothing was put in since.
func (s *sender) sendOldCork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.cork.begun != s.cork.seen
	s.cork.seen = s.cork.begun
	if fresh {
		return true
	}
	s.link.Flush()
	s.cork.guarded.Store(false)
	return false
}
