package soft

import (
	"github.com/seed-b9b531af/ramjet/verbs"
)

// outbound is the peer's segment as its only writer sees it, guarded by
// sendMu. Counters that end in what the peer published are copies, read again
// only when they are used up.
type outbound struct {
	view
	head      uint64 // descriptors written
	published uint64 // descriptors that the peer can see
	consumed  uint64 // copy: descriptors that the peer has polled
	recvs     uint64 // receives of the peer used
	posted    uint64 // copy: receives that the peer has posted
	sent      uint64 // bytes put into the SEND buffer
	released  uint64 // copy: bytes that the peer has taken from it
	pileUp    int    // bytes of payload behind unpublished descriptors
	solicited bool   // one of the unpublished ones is solicited

	srq     bool     // the peer receives from an SRQ
	bell    int      // the peer's, -1: it has none
	seg     *segment // of this process, or nil
	mapping []byte   // of another process, or nil
	in      *inbound // of this process, for the race detector
}

// pileUpLimit is how much payload may lie in a region before the peer hears
// of it. More would keep it from copying out while we copy in.
const pileUpLimit = 8 << 10

// next returns the entry to fill in. The caller has made sure that it is free.
func (o *outbound) next() *descriptor { return o.at(o.head) }

// push appends the entry that next returned. n is the payload behind it.
func (o *outbound) push(d *descriptor, n int, solicited bool) {
	if o.head != o.published {
		// Visible by the store to an earlier entry, which comes later.
		d.setSeqQuietly(uint32(o.head) + 1)
	}
	o.head++
	o.solicited = o.solicited || solicited
	if o.pileUp += n; o.pileUp >= pileUpLimit {
		o.publish()
	}
}

// publish makes everything that was pushed visible, and rings.
func (o *outbound) publish() {
	if o.published == o.head {
		return
	}
	raceRelease(o.in)
	d := o.at(o.published)
	d.seq.Store(uint32(o.published) + 1) // full fence: the load of arm comes after it
	o.published = o.head
	o.pileUp = 0
	if w := o.hdr.arm.Load(); w&armArmed != 0 {
		o.wake(o.solicited)
	}
	o.solicited = false
}

// wake rings the peer as its arm word says. Whoever takes armArmed away
// rings, so that one arrival rings once.
func (o *outbound) wake(solicited bool) {
	arm := &o.hdr.arm
	for range casTries {
		w := arm.Load()
		if w&armArmed == 0 || (w&armSolicited != 0 && !solicited) {
			return
		}
		if !arm.CompareAndSwap(w, w&^(armArmed|armFutex)) {
			continue
		}
		if w&armFutex != 0 {
			futexWake(word(arm))
		} else if o.bell >= 0 {
			ringBell(o.bell)
		}
		return
	}
}

// hasReceive reports whether the peer has a receive for us.
func (o *outbound) hasReceive() bool {
	if o.srq || o.recvs != o.posted {
		return true
	}
	posted := o.hdr.posted.Load()
	if posted-o.recvs > uint64(len(o.lengths)) {
		return false // impossible; sane says so to those who ask
	}
	o.posted = posted
	return o.recvs != o.posted
}

// hasEntry reports whether a descriptor is free.
func (o *outbound) hasEntry() bool {
	if o.head-o.consumed < uint64(len(o.ring)) {
		return true
	}
	return o.refresh() && o.head-o.consumed < uint64(len(o.ring))
}

// refresh reads what the peer has consumed; false if it says what cannot be.
func (o *outbound) refresh() bool {
	released, consumed := o.hdr.released.Load(), o.hdr.consumed.Load()
	if consumed-o.consumed > o.published-o.consumed || released-o.released > o.sent-o.released {
		return false
	}
	o.consumed, o.released = consumed, released
	return true
}

// sane reports whether the peer's counters are possible.
func (o *outbound) sane() bool {
	posted := o.hdr.posted.Load()
	if !o.srq && posted-o.recvs > uint64(len(o.lengths)) {
		return false
	}
	return o.refresh()
}

// sendRoom returns how many contiguous bytes of the SEND buffer are free.
func (o *outbound) sendRoom() int {
	size := uint64(len(o.send))
	free := size - (o.sent - o.released)
	return int(min(free, size-o.sent%size))
}

// askForNews has the peer kick us when it consumes more.
func (o *outbound) askForNews() { o.hdr.want.Store(1) }

// close gives the peer's segment back.
func (o *outbound) close() {
	if o.seg != nil {
		o.seg.release()
	}
	if o.mapping != nil {
		unmap(o.mapping, ofAPeer)
	}
	closeFDs(o.bell)
	*o = outbound{bell: -1}
}

// open lets o begin on the peer's segment.
func (o *outbound) open(v view, h hello, bell int) {
	o.view = v
	o.srq = h.flags&helloSRQ != 0
	o.bell = bell
}

// verdict is how a request ended.
type verdict struct {
	status    verbs.WCStatus
	tell      faultKind // what the responder learns of a failure
	n         int       // bytes
	described bool      // it has a descriptor, so the peer's SRQ decides when it is done
}
