package soft

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/internal/release"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
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
//     the oldest receive (or one of the SRQ), copies what a SEND brought, or a WRITE in
//     its descriptor, and makes the work completion.
//  4. Poll raises consumed and released, not each time but before the peer
//     can run out.
type inbound struct {
	// cursor is the next descriptor: its entry, and the low half of its position.
	// Written under pollMu.
	cursor atomic.Uint64
	seg    *segment

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
	// flushStatus is the status of the first flushed receive, if not WR_FLUSH.
	flushStatus atomic.Uint32

	nextOfChannel *inbound // guarded by the channel's mu

	grants grants

	// What follows is guarded by the CQ's pollMu.

	gone      bool       // detached from its CQ
	closed    bool       // flushed for good: the ring does not count any more
	parked    []verbs.WC // taken at the peer's request, before somebody polled
	pos       uint64     // descriptors taken
	index     uint32     // entry of the next one
	reach     uint32     // entries that have memory, as far as we know
	late      uint64     // how late consumed is published at most
	told      uint64     // consumed, as last published
	eager     bool       // publish at the end of each poll: the peer counts on it
	freed     uint64     // bytes of the SEND buffer given back
	toldFreed uint64
	partial   partial // the SEND whose pieces are arriving
	sgl       *region // last region used by a receive
	written   *region // last region that a WRITE in a descriptor named
	cause     failure // why the peer is thought to lie
	broken    bool    // it is already on cq.broken
}

// partial is a SEND of which some pieces have come.
type partial struct {
	active bool
	recv   recvEntry
	sgl    []verbs.SGE
	done   uint32 // bytes
}

func newInbound(q *qp, seg *segment) *inbound {
	in := &inbound{q: q, seg: seg, reach: protocol.FirstLap, late: protocol.FirstLap / 4}
	if q.srq == nil {
		in.recvs.init(seg.geo.Receives, q.cap.MaxRecvWR, q.cap.MaxRecvSGE)
	} else {
		in.eager = true
		in.partial.sgl = make([]verbs.SGE, 0, maxSGE)
	}
	return in
}

// ready reports whether the next descriptor is published. It may be called
// without a lock: the ring stays mapped while in is reachable. Another poll
// meanwhile may be ahead of the cursor; then that one sees what comes next, or,
// if the entry was used again since, its publication wakes us.
func (in *inbound) ready() bool {
	c := in.cursor.Load()
	ok := in.seg.Ring[c>>32].Seq.Load() == uint32(c)+1
	runtime.KeepAlive(in)
	return ok
}

// arrived counts the descriptors that are published and will be taken, up to most.
func (in *inbound) arrived(most int) (n int) {
	if in.closed {
		return 0
	}
	ring := in.seg.Ring
	for pos, i := in.pos, in.index; n < most && i < uint32(len(ring)) && ring[i].Seq.Load() == uint32(pos)+1; pos++ {
		n++
		next := i + 1
		if ring[i].Flags&protocol.FlagElsewhere != 0 {
			next = ring[i].Next
		}
		i = next
	}
	return n
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
	start := in.pos
	n := 0
	race.Acquire(unsafe.Pointer(in)) // of what the sender published in this process
	tail := in.recvs.tail.Load()
	for n < len(wcs) {
		d := &in.seg.Ring[in.index]
		if d.Seq.Load() != uint32(in.pos)+1 {
			break
		}
		if d.Kind == protocol.KindWriteImm && in.q.srq == nil && !in.partial.active {
			length, imm := d.Length, d.Imm
			e := in.recvs.at(tail)
			if tail == in.recvs.head.Load() {
				in.protocolError(verbs.EventQPFatal)
				break
			}
			if d.Flags&protocol.FlagInDescriptor != 0 && !in.placeWrite(d, length) {
				break
			}
			tail++
			wcs[n] = verbs.WC{ID: e.id, Opcode: verbs.WCRecvWriteWithImm, Flags: verbs.WCWithImm, ByteLen: length, Imm: imm, QPN: in.q.num}
			n++
			if !in.step(d) {
				break
			}
			continue
		}
		in.recvs.tail.Store(tail)
		made, ok := in.takeOther(d, &wcs[n])
		tail = in.recvs.tail.Load()
		n += made
		if !ok || !in.step(d) {
			break
		}
	}
	if in.pos != start {
		// Both may be seen late, as nothing behind them needs to be a fence. PostRecv would then
		// see less room than there is, and ready an entry that was taken. Who polls after arming sees
		// them: polls come after one another, by pollMu or by what keeps the program's promise.
		release.Store(&in.recvs.tail, tail)
		release.Store(&in.cursor, uint64(in.index)<<32|uint64(uint32(in.pos)))
	}
	if in.pos != in.told && (in.eager || in.pos-in.told > in.late) {
		in.publish()
	}
	return n
}

// placeWrite copies the data of a WRITE from its descriptor to their place. The peer has checked key,
// bounds and rights, but can lie.
func (in *inbound) placeWrite(d *protocol.Descriptor, length uint32) bool {
	key, addr := d.Total, d.Addr
	if !in.q.atPoll || length > protocol.InlinePayload {
		in.protocolError(verbs.EventQPFatal)
		return false
	}
	r := in.written
	if r == nil || r.key != key || !r.lets(in.q) { // a window may have got the key again
		r = in.granted(key)
		in.written = r
	}
	if r != nil && r.access&verbs.AccessRemoteWrite != 0 {
		if dst, ok := r.bytes(addr, length); ok {
			copy(dst, d.Data[:length])
			return true
		}
	}
	in.accessError()
	return false
}

// accessError ends the pair for a WRITE that may not go where it wants to.
//
//go:noinline
func (in *inbound) accessError() {
	in.fail(failure{tell: protocol.FaultAccess, event: verbs.EventQPAccessErr, raise: true})
}

// grants are the regions that the peer has, by their keys. They outlive the link: what came
// before its end is delivered after it.
type grants struct {
	mu    sync.Mutex
	local bool // guarded by mu: the peer is of this process, and has all that it may use
	byKey map[uint32]*region
}

func (g *grants) add(r *region) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byKey == nil {
		g.byKey = make(map[uint32]*region)
	}
	g.byKey[r.key] = r
}

func (g *grants) remove(r *region) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byKey[r.key] == r {
		delete(g.byKey, r.key)
	}
}

func (g *grants) toLocal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.local = true
}

// granted returns the region of a key that the peer has and may use, nil if there is none.
func (in *inbound) granted(key uint32) *region {
	g := &in.grants
	g.mu.Lock()
	r, local := g.byKey[key], g.local
	g.mu.Unlock()
	if local {
		r = in.q.dev.region(key)
	}
	if r == nil || !r.lets(in.q) {
		return nil
	}
	return r
}

// step goes on to the entry behind d, which was taken; false if that is not to be
// looked at. Where it is stands in d, which the peer can change: it is read once.
func (in *inbound) step(d *protocol.Descriptor) bool {
	in.pos++
	flags := d.Flags
	if flags&protocol.FlagElsewhere == 0 && in.index+1 < in.reach {
		in.index++
		return true
	}
	return in.leap(flags, d.Next)
}

// leap goes on where a descriptor with these flags says, or with entries that are
// new to us. It stays in the ring, whatever the descriptor says.
func (in *inbound) leap(flags uint8, elsewhere uint32) bool {
	entries := uint32(len(in.seg.Ring))
	next := in.index + 1
	if flags&protocol.FlagElsewhere != 0 {
		in.eager = true
		if elsewhere == 0 { // the lap ends here
			in.late = uint64(next / 4)
			in.reach = max(protocol.FirstLap, next)
		}
		next = elsewhere
	}
	if next >= entries {
		in.protocolError(verbs.EventQPFatal)
		return false
	}
	in.index = next
	if next < in.reach {
		return true
	}
	// The peer has given it memory. If not, this is an error and not a signal.
	reach := protocol.LongerLap(next, entries)
	if sys.Populate(protocol.PagesOfEntries(in.seg.Ring, next, reach)) != nil {
		in.fail(failure{event: verbs.EventQPFatal, raise: true})
		return false
	}
	in.reach = reach
	return true
}

// publish tells the peer how far we are, and asks for it to be notified if it
// waits for that.
func (in *inbound) publish() {
	in.told = in.pos
	hdr := in.seg.Header
	if in.freed != in.toldFreed {
		in.toldFreed = in.freed
		hdr.Released.Store(in.freed)
	}
	hdr.Consumed.Store(in.pos) // full fence: the load of want comes after it
	if in.q.srq == nil {
		in.eager = false
	}
	in.answerWant()
}

func (in *inbound) answerWant() {
	if in.seg.Header.Want.Load() != 0 {
		in.seg.Header.Want.Store(0)
		in.q.recvCQ.toNotify = append(in.q.recvCQ.toNotify, in)
	}
}

// protocolError ends the pair: its ring says what no honest peer would say. It and accessError are not
// inlined, for a goroutine that waits in Read polls on a stack of 2 KiB, and a larger one costs each of them
// as much again.
//
//go:noinline
func (in *inbound) protocolError(event verbs.EventType) {
	in.fail(failure{event: event, raise: true})
}

// fail has the QP moved to ERR once pollMu is released. The ring counts for
// nothing from here on.
func (in *inbound) fail(f failure) {
	in.closed = true
	if in.broken {
		return
	}
	in.broken = true
	in.cause = f
	in.q.recvCQ.broken = append(in.q.recvCQ.broken, in)
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
		if v := in.flushStatus.Swap(0); v != 0 {
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

// arm sets the word that asks the peer to wake us. ArmFutex belongs to the channel
// and stays.
func (in *inbound) arm(want uint32) {
	arm := &in.seg.Header.Arm
	for range casTries {
		w := arm.Load()
		next := stronger(w, want) | w&protocol.ArmFutex
		if w == next || arm.CompareAndSwap(w, next) {
			// After the word, so that no event is seen that is not one. What the
			// peer publishes in between the poll after Arm finds.
			in.expected.Store(want != 0)
			in.expectedThread.Store(want != 0)
			in.armings.Add(1)
			if want == 0 || arm.Load()&protocol.ArmArmed != 0 {
				return
			}
			// The peer has taken it already, perhaps for what was polled before. Who
			// waits may have looked before the event was expected, and park again. What it
			// took for what has come since, the poll after Arm finds.
		}
	}
	// Nobody changes the word that often, except to harm us.
	in.protocolError(verbs.EventQPFatal)
}

// casTries bounds the races for a word that a peer may write.
const casTries = 64

// hasEvent reports whether the peer has taken ArmArmed away since the CQ was
// armed, once.
func (in *inbound) hasEvent() bool { return in.takeEvent(&in.expected) }

// hasEventThread is hasEvent for WaitThread.
func (in *inbound) hasEventThread() bool { return in.takeEvent(&in.expectedThread) }

func (in *inbound) takeEvent(expected *atomic.Bool) bool {
	taken := expected.Load() && in.seg.Header.Arm.Load()&protocol.ArmArmed == 0 && expected.Swap(false)
	runtime.KeepAlive(in) // the segment stays mapped as long
	return taken
}

func (in *inbound) armWord() *uint32 { return sys.Word(&in.seg.Header.Arm) }

// takeOther handles a descriptor that is not a WRITE that uses up
// a receive of the QP's own queue. made is the number of completions, 0 or 1;
// ok is false if the descriptor stays where it is.
func (in *inbound) takeOther(d *protocol.Descriptor, wc *verbs.WC) (made int, ok bool) {
	// The peer can change the entry while we look: each field is read once.
	c := descriptorCopy{kind: d.Kind, flags: d.Flags, imm: d.Imm, length: d.Length, total: d.Total}
	// Pieces, which make no completion, keep Poll no longer than a ring of them.
	if c.kind < protocol.KindWriteImm || c.kind > protocol.KindPiece ||
		c.kind == protocol.KindWriteImm && (in.partial.active || c.flags&protocol.FlagInDescriptor != 0) ||
		in.pos-in.told >= uint64(len(in.seg.Ring)) {
		in.protocolError(verbs.EventQPFatal)
		return 0, false
	}
	if !in.partial.active && !in.begin() {
		return 0, false
	}
	p := &in.partial
	if c.kind != protocol.KindWriteImm {
		data, ok := in.payload(d, &c)
		if !ok {
			in.protocolError(verbs.EventQPFatal)
			return 0, false
		}
		if !in.place(&c, data) {
			return 0, false
		}
		if c.kind == protocol.KindPiece {
			return 0, true
		}
		c.length = c.total
	}
	p.active = false
	if in.q.srq == nil {
		in.recvs.tail.Store(in.recvs.tail.Load() + 1)
	}
	*wc = verbs.WC{ID: p.recv.id, Opcode: verbs.WCRecv, ByteLen: c.length, QPN: in.q.num}
	switch c.kind {
	case protocol.KindWriteImm:
		wc.Opcode, wc.Flags, wc.Imm = verbs.WCRecvWriteWithImm, verbs.WCWithImm, c.imm
	case protocol.KindSendImm:
		wc.Flags, wc.Imm = verbs.WCWithImm, c.imm
	case protocol.KindSendInv:
		if !in.invalidate(c.imm) {
			wc.Status = verbs.WCLocAccessErr
			in.fail(failure{tell: protocol.FaultReceiver, event: verbs.EventQPAccessErr, raise: true})
			return 1, false
		}
		wc.Flags, wc.Imm = verbs.WCWithInv, c.imm
	}
	return 1, true
}

// descriptorCopy is what one look at a descriptor saw.
type descriptorCopy struct {
	kind, flags        uint8
	imm, length, total uint32
	next               uint32
	addr               uint64
}

// begin finds the receive for a message. The peer of a QP with a queue of its
// own knows that there is one; with an SRQ there may be none.
func (in *inbound) begin() bool {
	p := &in.partial
	if in.q.srq != nil {
		if !in.q.srq.take(p, in.q.recvCQ) {
			in.starve()
			return false
		}
	} else {
		tail := in.recvs.tail.Load()
		if tail == in.recvs.head.Load() {
			in.protocolError(verbs.EventQPFatal)
			return false
		}
		p.recv, p.sgl = *in.recvs.at(tail), in.recvs.sgl(tail)
	}
	p.active, p.done = true, 0
	return true
}

// starve tells the peer that the SRQ had nothing for the next descriptor.
func (in *inbound) starve() {
	hdr, pos := in.seg.Header, in.pos
	if hdr.Starved.Load() == pos+1 {
		return
	}
	in.told = pos
	in.toldFreed = in.freed
	hdr.Released.Store(in.freed)
	hdr.Consumed.Store(pos)
	hdr.Starved.Store(pos + 1)
	in.answerWant()
}

// payload returns what a SEND brought: in the descriptor, or in the SEND
// buffer, whose pieces follow each other without gaps.
func (in *inbound) payload(d *protocol.Descriptor, c *descriptorCopy) ([]byte, bool) {
	p := &in.partial
	last := c.kind != protocol.KindPiece
	if uint64(p.done)+uint64(c.length) > uint64(c.total) || last != (p.done+c.length == c.total) || (!last && c.length == 0) {
		return nil, false
	}
	if c.flags&protocol.FlagInDescriptor != 0 {
		if c.length > protocol.InlinePayload {
			return nil, false
		}
		return d.Data[:c.length], true
	}
	at := in.freed & uint64(len(in.seg.Send)-1)
	if uint64(c.length) > uint64(len(in.seg.Send))-at {
		return nil, false
	}
	in.freed += (uint64(c.length) + protocol.SendAlign - 1) &^ (protocol.SendAlign - 1)
	in.eager = true
	return in.seg.Send[at:][:c.length], true
}

// place copies a piece to where the receive wants it.
func (in *inbound) place(c *descriptorCopy, data []byte) bool {
	p := &in.partial
	if c.total > p.recv.total {
		in.fail(failure{recv: verbs.WCLocLenErr, tell: protocol.FaultReceiveTooShort})
		return false
	}
	if !scatter(in.q.pd, &in.sgl, p.sgl, int(p.done), data) {
		in.fail(failure{recv: verbs.WCLocProtErr, tell: protocol.FaultReceiver})
		return false
	}
	p.done += c.length
	return true
}

// invalidate takes an rkey of ours away at the peer's request.
func (in *inbound) invalidate(key uint32) bool { return in.q.takeKey(key) }
