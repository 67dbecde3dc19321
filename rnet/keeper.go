package rnet

import (
	"sync"
	"time"
)

// keeper looks after sessions whose leader left without arming the CQ: within
// keeperPeriod it arms those that nobody came back to. Its timer runs only while
// there are such sessions.
var keeper keeperList

const keeperPeriod = time.Millisecond

type keeperList struct {
	mu      sync.Mutex
	entries []*session
	timer   *time.Timer // calls round
	running bool        // it will, or does
	idle    []*session  // of the one round that runs, kept for the next
}

func (k *keeperList) add(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.watched.Swap(true) {
		return
	}
	k.entries = append(k.entries, s)
	if !k.running {
		k.startLocked()
	}
}

// startLocked has round called when a period has passed. It allocates once.
func (k *keeperList) startLocked() {
	k.running = true
	if k.timer == nil {
		k.timer = time.AfterFunc(keeperPeriod, k.round)
		return
	}
	k.timer.Reset(keeperPeriod)
}

// round looks at each session once and drops those that it arms. As long as
// some are left it is called again.
func (k *keeperList) round() {
	k.mu.Lock()
	left, idle := k.entries[:0], k.idle[:0]
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
	k.mu.Unlock()
	for _, s := range idle {
		s.lookAfter() // who leads now adds the session again, if it leaves it unarmed
	}
	clear(idle)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = idle
	k.running = false
	if len(k.entries) > 0 {
		k.startLocked()
	}
}
