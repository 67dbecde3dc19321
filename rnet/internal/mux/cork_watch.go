package mux

import (
	"sync"
	"time"
)

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
