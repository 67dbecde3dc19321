package soft

import (
	"unsafe"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
)

// outbound is the peer's segment as its only writer sees it, guarded by
// sendMu. Counters that end in what the peer published are copies, read again
// only when they are used up.
type outbound struct {
	protocol.View
	head      uint64  // descriptors written
	plain     uint64  // descriptors before this one go into free entries that follow each other
	index     uint32  // entry of the next descriptor
	unseen    uint32  // entry of the first descriptor that the peer cannot see
	published uint64  // descriptors that the peer can see
	consumed  uint64  // copy: descriptors that the peer has polled
	lap       uint32  // entries in use
	grown     uint64  // descriptors before this one lie where they did before the lap grew
	recvs     uint64  // receives of the peer used
	posted    uint64  // copy: receives that the peer has posted
	sent      uint64  // bytes put into the SEND buffer
	released  uint64  // copy: bytes that the peer has taken from it
	pileUp    int     // bytes of payload behind unpublished descriptors
	behind    uintptr // where the last payload ends, 0 if there was none
	solicited bool    // one of the unpublished ones is solicited

	srq     bool     // the peer receives from an SRQ
	cursor  uint64   // of the inbound half, at the last post
	atPoll  bool     // short WRITEs with immediate travel in descriptors
	wakeFD  int      // the peer's wake-up socket, -1: it has none
	seg     *segment // of this process, or nil
	mapping []byte   // of another process, or nil
	in      *inbound // of this process, for the race detector
}

// pileUpLimit is how much payload may lie in a region before the peer is told
// of it. More would keep it from copying out while we copy in.
const pileUpLimit = 8 << 10

// next returns the entry to fill in. The caller has made sure that it is free.
func (o *outbound) next() *protocol.Descriptor { return &o.Ring[o.index] }

// push appends the entry that next returned. n is the payload behind it.
func (o *outbound) push(d *protocol.Descriptor, n int, solicited bool) {
	at := o.index
	if o.head < o.plain {
		o.index++
	} else {
		o.goRound(d)
	}
	if o.head != o.published {
		// Visible by the store to an earlier entry, which comes later.
		d.SetSeqQuietly(uint32(o.head) + 1)
	} else {
		o.unseen = at
	}
	o.head++
	o.solicited = o.solicited || solicited
	if o.pileUp += n; o.pileUp >= pileUpLimit {
		o.publish()
	}
}

// publish makes everything that was pushed visible, and wakes the peer.
func (o *outbound) publish() {
	if o.published == o.head {
		return
	}
	if race.Enabled && o.in != nil {
		race.Release(unsafe.Pointer(o.in))
	}
	d := &o.Ring[o.unseen]
	d.Seq.Store(uint32(o.published) + 1) // full fence: the load of arm comes after it
	o.published = o.head
	o.pileUp = 0
	if w := o.Header.Arm.Load(); w&protocol.ArmArmed != 0 {
		o.wake(o.solicited)
	}
	o.solicited = false
}

// wake wakes the peer as its arm word says. Whoever takes ArmArmed away
// does, so that one arrival wakes once.
func (o *outbound) wake(solicited bool) {
	arm := &o.Header.Arm
	for range casTries {
		w := arm.Load()
		if w&protocol.ArmArmed == 0 || (w&protocol.ArmSolicited != 0 && !solicited) {
			return
		}
		if !arm.CompareAndSwap(w, w&^(protocol.ArmArmed|protocol.ArmFutex)) {
			continue
		}
		if w&protocol.ArmFutex != 0 {
			sys.FutexWake(sys.Word(arm))
		} else if o.wakeFD >= 0 {
			sys.SendWake(o.wakeFD)
		}
		return
	}
}

// hasReceive reports whether the peer has a receive for us.
func (o *outbound) hasReceive() bool {
	if o.srq || o.recvs != o.posted {
		return true
	}
	posted := o.Header.Posted.Load()
	if posted-o.recvs > uint64(len(o.Lengths)) {
		return false // impossible; sane says so to those who ask
	}
	o.posted = posted
	return o.recvs != o.posted
}

// hasEntry reports whether a descriptor is free.
func (o *outbound) hasEntry() bool { return o.head < o.plain || o.findEntry() }

// findEntry looks at what the peer has consumed since.
func (o *outbound) findEntry() bool {
	if !o.refresh() {
		return false
	}
	end := o.free()
	if o.head >= end {
		return false
	}
	if o.lap < uint32(len(o.Ring)) {
		end-- // the last free one says where the lap goes on if it has to grow
	}
	o.plain = min(end, o.head+uint64(o.lap-1-o.index))
	return true
}

// free returns the position before which descriptors go into free entries.
func (o *outbound) free() uint64 {
	end := o.consumed + uint64(o.lap)
	if o.consumed < o.grown {
		// The lap does not go round before the entries of its former shape are free.
		end = o.head
		if o.index > 0 {
			end += uint64(o.lap - o.index)
		}
	}
	return end
}

// goRound chooses the entry behind d, which is the last of the lap or the last free
// one: where the lap has grown, if the peer is so far behind, or at the start of
// the lap.
func (o *outbound) goRound(d *protocol.Descriptor) {
	end := o.lap
	o.refresh() // a lie shows at the next attempt
	switch {
	case o.head+1 >= o.free() && o.grow():
		o.grown = o.head + 1
		o.goOnAt(d, end)
	case o.index+1 == end:
		o.goOnAt(d, 0)
	default:
		o.index++
	}
}

func (o *outbound) goOnAt(d *protocol.Descriptor, next uint32) {
	d.Flags |= protocol.FlagElsewhere
	d.Next = next
	o.index, o.plain = next, 0
}

// grow makes the lap longer; false if it cannot be, or there is no memory for it.
func (o *outbound) grow() bool {
	lap := protocol.LongerLap(o.lap, uint32(len(o.Ring)))
	if lap == o.lap || sys.Populate(protocol.PagesOfEntries(o.Ring, o.lap, lap)) != nil {
		return false
	}
	// What an earlier use has left there must not look like what is to come.
	for i, pos := o.lap, uint32(o.head)+1; i < lap; i, pos = i+1, pos+1 {
		o.Ring[i].SetSeqQuietly(pos)
	}
	o.lap = lap
	return true
}

// shrink makes the lap as short as it can be while nothing is on its way, and takes
// the memory of the other entries away.
func (o *outbound) shrink() error {
	lap := max(protocol.FirstLap, o.index+1)
	if !o.refresh() || o.consumed != o.head || o.lap <= lap {
		return nil
	}
	if pages := protocol.PagesWithin(o.Ring, lap, o.lap); len(pages) > 0 {
		if err := sys.Discard(pages); err != nil {
			return err
		}
	}
	o.lap, o.plain = lap, 0
	return nil
}

// refresh reads what the peer has consumed; false if it says what cannot be.
func (o *outbound) refresh() bool {
	released, consumed := o.Header.Released.Load(), o.Header.Consumed.Load()
	if consumed-o.consumed > o.published-o.consumed || released-o.released > o.sent-o.released {
		return false
	}
	o.consumed, o.released = consumed, released
	return true
}

// sane reports whether the peer's counters are possible.
func (o *outbound) sane() bool {
	posted := o.Header.Posted.Load()
	if !o.srq && posted-o.recvs > uint64(len(o.Lengths)) {
		return false
	}
	return o.refresh()
}

// sendRoom returns how many contiguous bytes of the SEND buffer are free.
func (o *outbound) sendRoom() int {
	size := uint64(len(o.Send))
	free := size - (o.sent - o.released)
	return int(min(free, size-o.sent%size))
}

// askForNotify has the peer notify us when it consumes more.
func (o *outbound) askForNotify() { o.Header.Want.Store(1) }

// close gives the peer's segment back.
func (o *outbound) close() {
	if o.seg != nil {
		o.seg.release()
	}
	if o.mapping != nil {
		sys.Unmap(o.mapping, sys.OfAPeer)
		samehost.CloseReceived(o.wakeFD) // something may be in it that takes long to close
	} else {
		sys.CloseFDs(o.wakeFD)
	}
	*o = outbound{wakeFD: -1}
}

// open lets o begin on the peer's segment.
func (o *outbound) open(v protocol.View, h protocol.Hello, wakeFD int) {
	o.View = v
	o.lap = min(protocol.FirstLap, uint32(len(v.Ring)))
	o.srq = h.Flags&protocol.HelloSRQ != 0
	o.atPoll = h.Flags&protocol.HelloPlaceAtPoll != 0
	o.wakeFD = wakeFD
}
