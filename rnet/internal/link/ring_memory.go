package link

import "fmt"

// A ring is used from its start whenever the peer has released all of it. So of most
// rings only the first page is ever used, which stays in the caches; a ring in which
// much piles up is used further, and all of it by a stream that never pauses. On the
// software HCA it has memory only as far as it was used.
//
// The free part of a ring is the sender's, so it is the sender who gives it memory
// when it gets there, and takes that away again when the link has been idle.

// remoteMemory is what a provider offers whose regions have memory on use, and are mapped.
type remoteMemory interface {
	PopulateRemote(rkey uint32, addr uint64, n int) error
	DiscardRemote(rkey uint32, addr uint64, n int) error
	ShrinkRing() error    // of descriptors
	LimitRemote(n uint64) // the longest region of the peer that is mapped
	// RemotePageSize is what the two give and take: whole pages.
	RemotePageSize() int
}

// remoteRing is the sender's account of the peer's ring beside its positions. The
// send lock guards it.
type remoteRing struct {
	peer    *Params
	pages   remoteMemory // nil: all has memory
	page    uint32       // of the memory
	reached uint32       // so much has, from the start
	restart bool         // the next message tells the peer to go on at the start
	idleAt  uint64       // payload sent by the last look of trim
}

const (
	// leastReach is what a ring has memory for at least, in its first page.
	leastReach = 4 << 10
	// rewindFrom is how far the ring is used before it starts again. If it were less the
	// peer would have to be looked at for each message; and the page has room for one more.
	rewindFrom = leastReach - 1<<10
	// reachAtOnce is how much memory a ring gets beyond need, or loses, while others
	// wait for the send lock.
	reachAtOnce = 64 << 10
)

func (r *remoteRing) init(pages remoteMemory, peer *Params) {
	r.peer, r.reached = peer, peer.RingSize
	if r.pages = pages; pages != nil {
		r.reached = min(leastReach, peer.RingSize)
		r.page = uint32(max(leastReach, pages.RemotePageSize()))
	}
}

// rewind goes back to the start of the ring if the peer has released all. The send lock is
// held.
func (l *Link) rewind() {
	if l.tx.Offset() < rewindFrom {
		return
	}
	if l.tx.Sent() == l.peerReleased.Load() && l.takeCredit() && l.tx.Restart() {
		l.remote.restart = true
	}
}

// restarts returns the immediate of the next message in the ring. The send lock is held.
func (r *remoteRing) restarts() uint32 {
	if r.restart {
		r.restart = false
		return immRestart
	}
	return immFrames
}

// reach makes sure that the ring has memory up to an offset. The send lock is held.
func (r *remoteRing) reach(end uint32) error {
	if end <= r.reached {
		return nil
	}
	from := r.reached
	most := min(2*from, from+reachAtOnce) // ahead of use
	to := min((max(most, end)+r.page-1)&^(r.page-1), r.peer.RingSize)
	if err := r.pages.PopulateRemote(r.peer.RingKey, r.peer.RingAddr+uint64(from), int(to-from)); err != nil {
		return fmt.Errorf("memory for %d bytes of the peer's ring: %w", to, err)
	}
	r.reached = to
	return nil
}

// trim takes memory away from the ring if no payload was sent since the last call.
func (l *Link) trim() {
	l.sendMu.Lock()
	idle := l.remote.idleAt == l.payloadOut
	l.remote.idleAt = l.payloadOut
	l.sendMu.Unlock()
	if idle && l.remote.pages != nil {
		_ = l.remote.pages.ShrinkRing() // it stays as it is
	}
	for idle { // ends when there is nothing more to take, or something is sent
		idle = l.trimPart()
	}
}

// trimPart takes the last part of the ring's memory away; false if there is none to
// take.
func (l *Link) trimPart() bool {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	r := &l.remote
	if r.idleAt != l.payloadOut || r.pages == nil || r.reached <= leastReach || l.stopped || len(l.frames) > 0 {
		return false
	}
	if !l.takeCredit() || !l.tx.Restart() {
		return false
	}
	r.restart = true
	from := max(leastReach, r.reached-min(r.reached, reachAtOnce))
	if r.pages.DiscardRemote(l.peer.RingKey, l.peer.RingAddr+uint64(from), int(r.reached-from)) != nil {
		return false
	}
	r.reached = from
	return true
}
