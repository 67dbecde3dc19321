package mux

import "sync"

// twins are the muxes whose peers are in this process, by their tokens.
var twins = struct {
	mu   sync.Mutex
	muxs map[uint64]*Mux // guarded by mu
}{muxs: make(map[uint64]*Mux)}

// meetTwin makes the two ends of a mux in one process known to each other, once both are here.
// It comes before the poll lock is given up for the first time: whoever finds no twin is heard then.
func (m *Mux) meetTwin() {
	twins.mu.Lock()
	defer twins.mu.Unlock()
	twins.muxs[m.token] = m
	if t := twins.muxs[m.peer.Token]; t != nil && t.peer.Token == m.token {
		m.twin.Store(t)
		t.twin.Store(m)
	}
}

// leaveTwin takes that back.
func (m *Mux) leaveTwin() {
	twins.mu.Lock()
	defer twins.mu.Unlock()
	delete(twins.muxs, m.token)
	if t := m.twin.Swap(nil); t != nil {
		t.twin.Store(nil)
	}
}

// attend has the other end take in what was sent, if it is in this process: nobody may wait there for an
// OPEN, or for the last GO_AWAY. So no timer has to look after these muxes. Where it would fire, it
// would wake a thread of the process, which then takes an event that the thread that runs would have
// found sooner. An event loop looks after its muxes by itself.
func (m *Mux) attend() {
	if t := m.twin.Load(); t != nil && !t.onLoop() {
		t.pollLock.Attend()
	}
}

// attendSoon is attend for a caller that holds locks.
func (m *Mux) attendSoon() {
	if m.twin.Load() != nil {
		go m.attend()
	}
}
