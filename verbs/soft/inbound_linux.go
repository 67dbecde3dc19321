package soft

import (
	"runtime"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// inbound is the receive half of a QP: the segment that the peer writes
// descriptors into, and the receives that they use up. A QP that goes through
// RESET gets a new one.
//
// The life of an arrival:
//
//  1. PostRecv puts a receive into the receive queue and raises posted.
//  2. The peer, in its PostSend, writes payload and descriptor and publishes.
//  3. Poll, under the CQ's pollMu, reads the descriptor once, checks it, takes
//     the oldest receive (or one of the SRQ), copies what a SEND brought, and
//     makes the work completion.
//  4. Poll raises consumed and released, not each time but before the peer
//     can run out.
type inbound struct {
	pos atomic.Uint64 // next descriptor; written under pollMu
	seg *segment

	q     *qp
	recvs recvQueue // unused with an SRQ

	// The CQ was armed, and the event not given yet, to Wait and to WaitThread.
	expected, expectedThread atomic.Bool
	armings                  atomic.Uint32

	// attention is set while in has something to say that is not in its ring:
	// it counts in cq.work then.
	attention atomic.Bool
	// flushing: the QP failed. What is in the ring is still delivered, then
	// the receives are flushed.
	flushing atomic.Bool
	// verdict is the status of the first flushed receive, if not WR_FLUSH.
	verdict atomic.Uint32

	// What follows is guarded by the CQ's pollMu.

	gone      bool       // detached from its CQ
	closed    bool       // flushed for good: the ring does not count any more
	parked    []verbs.WC // taken at the peer's wish, before somebody polled
	told      uint64     // consumed, as last published
	eager     bool       // publish at the end of each poll: the peer counts on it
	freed     uint64     // bytes of the SEND buffer given back
	toldFreed uint64
	partial   partial // the SEND whose pieces are arriving
	sgl       *region // last region used by a receive
	diagnosis failure // why the peer is thought to lie
	condemned bool    // it is already on cq.sick
}

// partial is a SEND of which some pieces have come.
type partial struct {
	active bool
	recv   recvEntry
	sgl    []verbs.SGE
	done   uint32 // bytes
}

func newInbound(q *qp, seg *segment) *inbound {
	in := &inbound{q: q, seg: seg}
	if q.srq == nil {
		in.recvs.init(seg.geo.receives, q.cap.MaxRecvWR, q.cap.MaxRecvSGE)
	} else {
		in.eager = true
		in.partial.sgl = make([]verbs.SGE, 0, maxSGE)
	}
	return in
}

// ready reports whether the next descriptor is published. It may be called
// without a lock: the ring stays mapped while in is reachable, and the
// position only grows, so that a seq that is ahead of it is a yes too.
func (in *inbound) ready() bool {
	pos := in.pos.Load()
	ok := int32(in.seg.at(pos).seq.Load()-uint32(pos)-1) >= 0
	runtime.KeepAlive(in)
	return ok
}

// take makes work completions of what has arrived. The caller holds pollMu.
func (in *inbound) take(wcs []verbs.WC) int {
	n := 0
	if len(in.parked) != 0 {
		n = copy(wcs, in.parked)
		in.parked = in.parked[n:]
	}
	// Before the ring: what the peer published before its end is there then.
	flushing := in.flushing.Load()
	if !in.closed {
		n += in.takeArrived(wcs[n:])
	}
	if in.attention.Load() && n < len(wcs) {
		n += in.settle(wcs[n:], flushing)
	}
	return n
}

// settle flushes if it is time to, and withdraws the attention. flushing says
// that the QP had failed before the ring was found to have nothing more.
func (in *inbound) settle(wcs []verbs.WC, flushing bool) int {
	n := 0
	if flushing {
		in.closed = true
		n = in.flush(wcs)
	}
	if n < len(wcs) && in.attention.Swap(false) {
		in.q.recvCQ.work.Add(-1)
		// A failure or a receive that came since may have found the attention
		// still there: look again.
		if in.flushing.Load() && (!in.closed || in.recvs.head.Load() != in.recvs.tail.Load()) {
			in.wantAttention()
		}
	}
	return n
}

// takeArrived takes from the ring.
func (in *inbound) takeArrived(wcs []verbs.WC) int {
	start := in.pos.Load()
	pos := start
	n := 0
	raceAcquire(in)
	tail := in.recvs.tail.Load()
	for n < len(wcs) {
		d := in.seg.at(pos)
		if s := d.seq.Load(); s != uint32(pos)+1 {
			if !in.mayBeIdle(s, pos) {
				in.condemn(verbs.EventQPFatal)
			}
			break
		}
		if d.kind == kindWriteImm && in.q.srq == nil && !in.partial.active {
			length, imm := d.length, d.imm
			e := in.recvs.at(tail)
			if tail == in.recvs.head.Load() {
				in.condemn(verbs.EventQPFatal)
				break
			}
			tail++
			wcs[n] = verbs.WC{ID: e.id, Opcode: verbs.WCRecvWriteWithImm, Flags: verbs.WCWithImm, ByteLen: length, Imm: imm, QPN: in.q.num}
			n++
			pos++
			continue
		}
		in.recvs.tail.Store(tail)
		made, ok := in.takeOther(d, pos, &wcs[n])
		tail = in.recvs.tail.Load()
		n += made
		if !ok {
			break
		}
		pos++
	}
	if pos != start {
		in.recvs.tail.Store(tail)
		in.pos.Store(pos)
	}
	if pos != in.told && (in.eager || pos-in.told > uint64(len(in.seg.ring)/4)) {
		in.publish(pos)
	}
	return n
}

// mayBeIdle reports whether seq can be that of an entry not yet published at
// pos: nothing at all, or what the last lap left.
func (in *inbound) mayBeIdle(seq uint32, pos uint64) bool {
	lap := uint64(len(in.seg.ring))
	if pos < lap {
		return seq == 0
	}
	return seq == uint32(pos-lap)+1
}

// publish tells the peer how far we are, and asks for it to be kicked if it
// waits for that.
func (in *inbound) publish(pos uint64) {
	in.told = pos
	hdr := in.seg.hdr
	if in.freed != in.toldFreed {
		in.toldFreed = in.freed
		hdr.released.Store(in.freed)
	}
	hdr.consumed.Store(pos) // full fence: the load of want comes after it
	if in.q.srq == nil {
		in.eager = false
	}
	in.answerWant()
}

func (in *inbound) answerWant() {
	if in.seg.hdr.want.Load() != 0 {
		in.seg.hdr.want.Store(0)
		in.q.recvCQ.kicks = append(in.q.recvCQ.kicks, in)
	}
}

// condemn ends the pair: its ring says what no honest peer would say.
func (in *inbound) condemn(event verbs.EventType) {
	in.fail(failure{event: event, raise: true})
}

// fail has the QP moved to ERR once pollMu is released. The ring counts for
// nothing from here on.
func (in *inbound) fail(f failure) {
	in.closed = true
	if in.condemned {
		return
	}
	in.condemned = true
	in.diagnosis = f
	in.q.recvCQ.sick = append(in.q.recvCQ.sick, in)
}

// flush completes the receives of a failed QP.
func (in *inbound) flush(wcs []verbs.WC) int {
	n := 0
	for n < len(wcs) {
		e, ok := in.nextToFlush()
		if !ok {
			break
		}
		wcs[n] = verbs.WC{ID: e.id, Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv, QPN: in.q.num}
		if v := in.verdict.Swap(0); v != 0 {
			wcs[n].Status = verbs.WCStatus(v)
		}
		n++
	}
	return n
}

// drain takes what has arrived although nobody polls, because the peer waits
// for the room. It is how a SEND longer than the buffer, or one into an SRQ,
// completes at a peer whose receiver looks elsewhere.
func (in *inbound) drain() {
	c := in.q.recvCQ
	c.pollMu.Lock()
	if in.gone || in.closed || in.flushing.Load() {
		c.pollMu.Unlock()
		return
	}
	// Before the ring looks empty Poll must know that it has to look closer.
	in.wantAttention()
	var wcs [16]verbs.WC
	for n := len(wcs); n == len(wcs) && !in.closed; {
		n = in.takeArrived(wcs[:])
		in.parked = append(in.parked, wcs[:n]...)
	}
	c.unlockAndTell()
}

// nextToFlush is the oldest receive of the queue. Of an SRQ it is the one
// that a SEND has taken and will not complete; the others stay in it.
func (in *inbound) nextToFlush() (recvEntry, bool) {
	if in.q.srq == nil {
		return in.recvs.pop()
	}
	if in.partial.active {
		in.partial.active = false
		return in.partial.recv, true
	}
	return recvEntry{}, false
}

// wantAttention makes Poll look at in although its ring is silent.
func (in *inbound) wantAttention() {
	if !in.attention.Swap(true) {
		in.q.recvCQ.work.Add(1)
	}
}

// arm sets the word by which the peer rings. armFutex belongs to the channel
// and stays.
func (in *inbound) arm(want uint32) {
	arm := &in.seg.hdr.arm
	for range casTries {
		w := arm.Load()
		next := stronger(w, want) | w&armFutex
		if w == next || arm.CompareAndSwap(w, next) {
			// After the word, so that no event is seen that is not one. What the
			// peer publishes in between the poll after Arm finds.
			in.expected.Store(want != 0)
			in.expectedThread.Store(want != 0)
			in.armings.Add(1)
			return
		}
	}
	// Nobody changes the word that often, except to harm us.
	in.condemn(verbs.EventQPFatal)
}

// casTries bounds the races for a word that a peer may write.
const casTries = 64

// hasRung reports whether the peer has taken armArmed away since the CQ was
// armed, once.
func (in *inbound) hasRung() bool { return in.takeEvent(&in.expected) }

// hasRungThread is hasRung for WaitThread.
func (in *inbound) hasRungThread() bool { return in.takeEvent(&in.expectedThread) }

func (in *inbound) takeEvent(expected *atomic.Bool) bool {
	rung := expected.Load() && in.seg.hdr.arm.Load()&armArmed == 0 && expected.Swap(false)
	runtime.KeepAlive(in) // the segment stays mapped as long
	return rung
}

func (in *inbound) armWord() *uint32 { return word(&in.seg.hdr.arm) }
