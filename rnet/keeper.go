package rnet

import (
	"sync"
	"time"
)

// keeper looks after sessions whose leader left without arming the CQ: within
// keeperPeriod it arms those that nobody came back to. Its goroutine lives
// only while there are such sessions.
var keeper keeperList

const keeperPeriod = time.Millisecond

type keeperList struct {
	mu      sync.Mutex
	entries []keptSession
	running bool
}

type keptSession struct {
	s      *session
	visits uint32 // of the session at the last look
}

func (k *keeperList) add(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.watched.Swap(true) {
		return
	}
	k.entries = append(k.entries, keptSession{s: s, visits: s.visits.Load() - 1})
	if !k.running {
		k.running = true
		go k.run()
	}
}

func (k *keeperList) run() {
	for {
		time.Sleep(keeperPeriod) // ended by the clock
		if !k.round() {
			return
		}
	}
}

// round looks at each session once and drops those that it arms. It returns
// false, and has stopped, when none is left.
func (k *keeperList) round() bool {
	k.mu.Lock()
	var idle []*session
	left := k.entries[:0]
	for _, e := range k.entries {
		if v := e.s.visits.Load(); v != e.visits {
			e.visits = v // in use since the last look
			left = append(left, e)
			continue
		}
		e.s.watched.Store(false)
		idle = append(idle, e.s)
	}
	clear(k.entries[len(left):])
	k.entries = left
	k.running = len(left) > 0
	running := k.running
	k.mu.Unlock()
	for _, s := range idle {
		s.attend.Store(true)
		s.attendNow()
	}
	return running
}
