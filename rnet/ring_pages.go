package rnet

import "fmt"

// A ring is used from its start whenever the peer has released all of it. So of most
// rings only the first page is ever used, which stays in the caches; a ring in which
// much piles up is used further, and all of it by a stream that never pauses. On the
// software HCA it has memory only as far as it was used.
//
// The free part of a ring is the sender's, so it is the sender who gives it memory
// when it gets there, and takes that away again when the session has been idle.

// remotePages is what a provider offers whose regions have memory on use.
type remotePages interface {
	PopulateRemote(rkey uint32, addr uint64, n int) error
	DiscardRemote(rkey uint32, addr uint64, n int) error
	ShrinkRing() error // of descriptors
}

// ringPages is the sender's account of the peer's ring beside its positions. txMu
// guards it.
type ringPages struct {
	pages   remotePages // nil: all has memory
	reach   uint32      // so much has, from the start
	restart bool        // the next message tells the peer to go on at the start
	idleAt  uint64      // bytes sent by the last look of trim
}

const (
	// rewindFrom is how far the ring is used before it starts again: a page, or the
	// peer would have to be looked at for each message.
	rewindFrom = 4 << 10
	// leastReach is what a ring has memory for at least.
	leastReach = 8 << 10
	// reachAtOnce is how much memory a ring gets beyond need, or loses, while others
	// wait for txMu.
	reachAtOnce = 64 << 10
)

func (s *session) initAhead() {
	s.ahead.reach = s.peer.ringSize
	if s.ahead.pages, _ = s.qp.Driver().(remotePages); s.ahead.pages != nil {
		s.ahead.reach = min(leastReach, s.peer.ringSize)
	}
}

// rewind goes back to the start of the ring if the peer has released all. txMu is
// held.
func (s *session) rewind() {
	if s.tx.Offset() < rewindFrom {
		return
	}
	if s.tx.Sent() == s.peerReleased.Load() && s.takeCredit() && s.tx.Restart() {
		s.ahead.restart = true
	}
}

// restarts returns the immediate of the next message in the ring. txMu is held.
func (s *session) restarts() uint32 {
	if s.ahead.restart {
		s.ahead.restart = false
		return immRestart
	}
	return immFrames
}

// reach makes sure that the ring has memory up to an offset. txMu is held.
func (s *session) reach(end uint32) error {
	if end <= s.ahead.reach {
		return nil
	}
	from := s.ahead.reach
	most := min(2*from, from+reachAtOnce) // ahead of use
	to := min(max(most, (end+leastReach-1)&^(leastReach-1)), s.peer.ringSize)
	if err := s.ahead.pages.PopulateRemote(s.peer.ringKey, s.peer.ringAddr+uint64(from), int(to-from)); err != nil {
		return fmt.Errorf("memory for %d bytes of the peer's ring: %w", to, err)
	}
	s.ahead.reach = to
	return nil
}

// trim takes memory away from the ring if nothing was sent since the last call. The
// engine calls it every keepAlivePeriod.
func (s *session) trim() {
	s.txMu.Lock()
	idle := s.ahead.idleAt == s.bytesOut
	s.ahead.idleAt = s.bytesOut
	s.txMu.Unlock()
	if idle && s.ahead.pages != nil {
		_ = s.ahead.pages.ShrinkRing() // it stays as it is
	}
	for idle { // ends when there is nothing more to take, or something is sent
		idle = s.trimPart()
	}
}

// trimPart takes the last part of the ring's memory away; false if there is none to
// take.
func (s *session) trimPart() bool {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	a := &s.ahead
	if a.idleAt != s.bytesOut || a.pages == nil || a.reach <= leastReach || s.txDead || len(s.frames) > 0 {
		return false
	}
	if !s.takeCredit() || !s.tx.Restart() {
		return false
	}
	a.restart = true
	from := max(leastReach, a.reach-min(a.reach, reachAtOnce))
	if a.pages.DiscardRemote(s.peer.ringKey, s.peer.ringAddr+uint64(from), int(a.reach-from)) != nil {
		return false
	}
	a.reach = from
	return true
}
