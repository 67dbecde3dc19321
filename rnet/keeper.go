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
	entries []*session
	running bool
}

func (k *keeperList) add(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.watched.Swap(true) {
		return
	}
	k.entries = append(k.entries, s)
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
	for _, s := range k.entries {
		if s.visited.Swap(false) {
			left = append(left, s)
			continue
		}
		s.watched.Store(false)
		idle = append(idle, s)
	}
	clear(k.entries[len(left):])
	k.entries = left
	k.running = len(left) > 0
	running := k.running
	k.mu.Unlock()
	for _, s := range idle {
		s.lookAfter() // who leads now adds the session again, if it leaves it unarmed
	}
	return running
}
