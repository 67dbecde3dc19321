package soft

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// The path of a WRITE, with or without immediate:
//
//  1. PostSend takes sendMu. If nothing is queued before it, write checks
//     the peer's gate, the key, bounds and rights, and that the peer has a
//     receive and a free descriptor, from our own copies of its counters.
//  2. The payload is copied into the peer's region.
//  3. The descriptor is filled in. Those of one call are published together,
//     unless much payload lies between them.
//  4. publish stores the first seq, a full fence, and loads the peer's arm
//     word. Only if that is set it costs a system call.
//
// Everything else takes the long way: attempt, and if that cannot go on, the
// send queue.

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.sendMu.Lock()
	var err error
	n := 0
	for n < len(wrs) {
		wr := &wrs[n]
		if !q.open || !q.write(wr) {
			if err = q.postSlow(wr); err != nil {
				break
			}
		}
		n++
	}
	if q.out.published != q.out.head {
		q.out.publish()
	}
	if !q.pending {
		q.sendMu.Unlock()
		return n, err
	}
	q.unlock()
	return n, err
}

// WQEBytes is the descriptor that the peer gets, where it gets one: a long SEND makes several.
func (q *qp) WQEBytes(wr *verbs.SendWR) int {
	switch wr.Opcode {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWriteWithImm:
		return protocol.DescriptorSize
	}
	return 0
}

// write executes a WRITE for which nothing unusual has to be done. It returns
// false, with nothing done, for everything else.
func (q *qp) write(wr *verbs.SendWR) bool {
	o := &q.out
	const lets = protocol.GateOpen | protocol.GateWrite
	if wr.Opcode > verbs.OpWriteWithImm || o.Header.Gate.Load()&(lets|protocol.GateFailed) != lets {
		return false
	}
	withImm := wr.Opcode == verbs.OpWriteWithImm
	if withImm && !(o.hasReceive() && o.hasEntry()) {
		return false
	}
	signaled := (wr.Flags|q.always)&verbs.SendSignaled != 0
	if signaled && q.unpolled.Load() >= int32(q.cap.MaxSendWR) {
		return false
	}
	n := wr.Len()
	if uint64(n) > maxMessageSize {
		return false
	}
	if n > 0 {
		r := q.cached
		if r == nil || r.key != wr.RKey {
			return false
		}
		dst, ok := r.bytes(wr.RemoteAddr, uint64(n), verbs.AccessRemoteWrite)
		if !ok {
			return false
		}
		if wr.Flags&verbs.SendInline != 0 {
			for _, b := range wr.Inline {
				dst = dst[copy(dst, b):]
			}
		} else if !q.gather(dst, wr.SGL) {
			return false
		}
	}
	if withImm {
		o.recvs++
		d := o.next()
		d.Kind, d.Flags = protocol.KindWriteImm, 0
		d.Imm, d.Length = wr.Imm, uint32(n)
		o.push(d, n, wr.Flags&verbs.SendSolicited != 0)
	}
	if signaled {
		q.finish(wr.ID, wr.Opcode, n, verbs.WCSuccess)
	}
	return true
}

// postSlow executes or queues a request. The error means that it was not
// taken.
func (q *qp) postSlow(wr *verbs.SendWR) error {
	q.out.publish()
	if q.destroyed.Load() {
		return verbs.ErrClosed
	}
	state := q.state.Load()
	if state < stateRTS {
		return errPostState
	}
	if q.acks.n != 0 {
		q.retire()
	}
	if q.sq.n+q.acks.n+int(q.unpolled.Load()) >= q.cap.MaxSendWR {
		return errQueueDepth
	}
	if f := q.dev.faults.Load(); f != nil {
		f.posted(q)
		state = q.state.Load()
	}
	switch {
	case state == stateErr, state == stateSQE:
		q.finish(wr.ID, wr.Opcode, 0, verbs.WCWRFlushErr)
	case state == stateSQD || q.sq.n != 0:
		q.sq.add(wr, q.cap.MaxSendWR)
		q.drive()
	default:
		q.postAlone(wr)
	}
	return nil
}

// postAlone runs a request that has nothing before it.
func (q *qp) postAlone(wr *verbs.SendWR) {
	state, v := q.attempt(wr)
	if state == finished {
		q.conclude(wr, v)
		q.open = q.mayRun()
		return
	}
	q.sq.add(wr, q.cap.MaxSendWR)
	q.open = false
	q.drive() // says what it waits for
}

var (
	errPostState  = fmt.Errorf("%w: the QP is not in RTS", verbs.ErrInvalid)
	errQueueDepth = fmt.Errorf("%w: send queue", verbs.ErrQueueFull)
)

// progress is how far an attempt came: to the end, or to something that it
// has to wait for.
type progress uint8

const (
	finished  progress = iota
	needPeer           // not paired yet, or the peer is not in RTR yet
	needKey            // the peer has been asked about an rkey
	needRecv           // RNR: the peer has no receive
	needSpace          // the descriptor ring or the SEND buffer is full
)

// outcome is how a request ended.
type outcome struct {
	status    verbs.WCStatus
	tell      protocol.FaultKind // what the responder learns of a failure
	n         int                // bytes
	cut       bool               // the peer has a part of the message, or has used a receive for it
	described bool               // it has a descriptor, so the peer's SRQ decides when it is done
}

// attempt executes a request as far as it goes, with sendMu held. A request
// that it began and could not finish is resumed by the next attempt: only a
// SEND can be (sq.sent).
func (q *qp) attempt(wr *verbs.SendWR) (progress, outcome) {
	switch {
	case wr.Opcode == verbs.OpBindMW:
		return q.attemptBind(wr)
	case wr.Opcode == verbs.OpLocalInv:
		return q.attemptInvalidate(wr)
	case q.alone:
		return fails(verbs.WCRetryExcErr, protocol.FaultGone)
	case q.link == nil:
		return needPeer, outcome{}
	}
	gate := q.out.Header.Gate.Load()
	switch {
	case gate&protocol.GateFailed != 0:
		return finished, outcome{status: verbs.WCRetryExcErr}
	case gate&protocol.GateOpen == 0:
		return needPeer, outcome{}
	case !q.out.sane():
		return finished, outcome{status: verbs.WCBadRespErr}
	case uint64(wr.Len()) > maxMessageSize:
		return finished, outcome{status: verbs.WCLocLenErr}
	}
	switch wr.Opcode {
	case verbs.OpWrite, verbs.OpWriteWithImm:
		return q.attemptWrite(wr, gate)
	case verbs.OpRead:
		return q.attemptRead(wr, gate)
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return q.attemptAtomic(wr, gate)
	case verbs.OpAtomicWrite:
		return q.attemptAtomicWrite(wr, gate)
	case verbs.OpFlush:
		return q.attemptFlush(wr, gate)
	default:
		return q.attemptSend(wr)
	}
}

func fails(status verbs.WCStatus, tell protocol.FaultKind) (progress, outcome) {
	return finished, outcome{status: status, tell: tell}
}

func (q *qp) attemptWrite(wr *verbs.SendWR, gate uint32) (progress, outcome) {
	n := wr.Len()
	if gate&protocol.GateWrite == 0 {
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	}
	if !q.localOK(wr, 0) {
		return fails(verbs.WCLocProtErr, protocol.FaultGone)
	}
	var dst []byte
	if n > 0 {
		p, mem, v := q.remoteBytes(wr, uint64(n), verbs.AccessRemoteWrite)
		if p != finished || v.status != verbs.WCSuccess {
			return p, v
		}
		dst = mem
	}
	withImm := wr.Opcode == verbs.OpWriteWithImm
	if withImm {
		if p := q.canDescribe(); p != finished {
			return p, outcome{}
		}
	}
	if wr.Flags&verbs.SendInline != 0 {
		for _, b := range wr.Inline {
			dst = dst[copy(dst, b):]
		}
	} else if !q.gather(dst, wr.SGL) {
		return fails(verbs.WCLocProtErr, protocol.FaultGone)
	}
	if withImm {
		q.out.recvs++
		d := q.out.next()
		d.Kind, d.Flags = protocol.KindWriteImm, 0
		d.Imm, d.Length = wr.Imm, uint32(n)
		q.out.push(d, n, wr.Flags&verbs.SendSolicited != 0)
	}
	return finished, outcome{n: n, described: withImm}
}

// canDescribe says what is missing for a message that uses up a receive.
func (q *qp) canDescribe() progress {
	f := q.dev.faults.Load()
	switch {
	case f != nil && f.refuseReceive(), !q.out.hasReceive():
		if !q.sq.refused && !q.uc {
			q.sq.refused = true
			rnrs.Add(1)
		}
		return needRecv
	case !q.out.hasEntry():
		return needSpace
	}
	return finished
}

func (q *qp) attemptRead(wr *verbs.SendWR, gate uint32) (progress, outcome) {
	n := wr.Len()
	if gate&protocol.GateRead == 0 {
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	}
	if !q.localOK(wr, verbs.AccessLocalWrite) {
		return fails(verbs.WCLocProtErr, protocol.FaultGone)
	}
	if n > 0 {
		p, src, v := q.remoteBytes(wr, uint64(n), verbs.AccessRemoteRead)
		if p != finished || v.status != verbs.WCSuccess {
			return p, v
		}
		if !q.scatter(wr.SGL, src) {
			return fails(verbs.WCLocProtErr, protocol.FaultGone)
		}
	}
	return finished, outcome{n: n}
}

// attemptAtomic works on the word in place. Atomics of the specification are
// atomic among each other at one device; these are so for all processes that
// have the memory mapped, and with sync/atomic in its owner.
func (q *qp) attemptAtomic(wr *verbs.SendWR, gate uint32) (progress, outcome) {
	switch {
	case gate&protocol.GateAtomic == 0, wr.RemoteAddr%8 != 0:
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	case wr.Len() != 8:
		return fails(verbs.WCLocLenErr, protocol.FaultGone)
	case !q.localOK(wr, verbs.AccessLocalWrite):
		return fails(verbs.WCLocProtErr, protocol.FaultGone)
	}
	p, mem, v := q.remoteBytes(wr, 8, verbs.AccessRemoteAtomic)
	if p != finished || v.status != verbs.WCSuccess {
		return p, v
	}
	if protocol.AddressOf(mem)%8 != 0 {
		// An MR over a slice of the caller may begin anywhere; this one does
		// not, as its addresses are real. A peer's may lie about its address.
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	}
	word := protocol.Word64(mem)
	var old uint64
	if wr.Opcode == verbs.OpFetchAdd {
		old = word.Add(wr.CompareAdd) - wr.CompareAdd
	} else {
		old = compareSwap(word, wr.CompareAdd, wr.Swap)
	}
	var bytes [8]byte
	putNative(bytes[:], old)
	if !q.scatter(wr.SGL, bytes[:]) {
		return fails(verbs.WCLocProtErr, protocol.FaultGone)
	}
	return finished, outcome{n: 8}
}

// attemptAtomicWrite stores 8 bytes, of which nobody sees a part.
func (q *qp) attemptAtomicWrite(wr *verbs.SendWR, gate uint32) (progress, outcome) {
	if gate&protocol.GateWrite == 0 {
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	}
	var bytes [8]byte
	q.gatherAt(bytes[:], wr, 0) // always inline
	p, mem, v := q.remoteBytes(wr, 8, verbs.AccessRemoteWrite)
	if p != finished || v.status != verbs.WCSuccess {
		return p, v
	}
	if protocol.AddressOf(mem)%8 != 0 { // as for atomics
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	}
	protocol.Word64(mem).Store(binary.NativeEndian.Uint64(bytes[:]))
	return finished, outcome{n: 8}
}

// attemptFlush has nothing to do but to look whether it may: what was written before
// is in memory that the whole host sees alike, and the count of the completion is
// a full fence.
func (q *qp) attemptFlush(wr *verbs.SendWR, gate uint32) (progress, outcome) {
	if gate&protocol.GateFlush == 0 {
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	}
	n, at := uint64(wr.Flush.Length), wr.RemoteAddr
	p, v := q.resolve(wr.RKey)
	if p != finished || v.status != verbs.WCSuccess {
		return p, v
	}
	if wr.Flush.Level == verbs.FlushMR {
		n, at = 0, q.cached.addr
	}
	_, ok := q.cached.bytes(at, n, verbs.AccessFlushGlobal)
	if !ok || wr.Flush.Type != verbs.FlushGlobal {
		return fails(verbs.WCRemAccessErr, protocol.FaultAccess)
	}
	return finished, outcome{}
}

// attemptSend puts a message into the peer's SEND buffer, piece by piece if
// it is longer than what is free there.
func (q *qp) attemptSend(wr *verbs.SendWR) (progress, outcome) {
	o := &q.out
	n := wr.Len()
	if q.sq.sent == 0 && !q.sq.begun {
		if !q.localOK(wr, 0) {
			return fails(verbs.WCLocProtErr, protocol.FaultGone)
		}
		if wr.Opcode == verbs.OpSendWithInv {
			if p, v := q.resolve(wr.InvalidateRKey); p != finished || v.status != verbs.WCSuccess {
				return p, v
			}
		}
		if p := q.canDescribe(); p != finished {
			return p, outcome{}
		}
		if !o.srq && uint64(n) > uint64(o.Lengths[o.recvs&uint64(len(o.Lengths)-1)].Load()) {
			return fails(verbs.WCRemInvReqErr, protocol.FaultTooLong)
		}
		o.recvs++
		q.sq.begun = true
	}
	solicited := wr.Flags&verbs.SendSolicited != 0
	if n <= protocol.InlinePayload {
		if !o.hasEntry() {
			return needSpace, outcome{}
		}
		d := o.next()
		if !q.gatherAt(d.Data[:n], wr, 0) {
			return finished, outcome{status: verbs.WCLocProtErr, cut: true}
		}
		d.Flags, d.Length = protocol.FlagInDescriptor, uint32(n)
		q.lastPiece(d, wr, n, solicited)
		return finished, outcome{n: n, described: true}
	}
	for {
		room, enough := q.sendRoom(n - q.sq.sent)
		if !enough || !o.hasEntry() {
			o.publish()
			return needSpace, outcome{}
		}
		piece := min(room, n-q.sq.sent)
		d := o.next()
		at := o.sent & uint64(len(o.Send)-1)
		if !q.gatherAt(o.Send[at:][:piece], wr, q.sq.sent) {
			return finished, outcome{status: verbs.WCLocProtErr, cut: true}
		}
		o.sent += uint64((piece + protocol.SendAlign - 1) &^ (protocol.SendAlign - 1))
		d.Flags, d.Length = 0, uint32(piece)
		if q.sq.sent += piece; q.sq.sent == n {
			q.lastPiece(d, wr, n, solicited)
			return finished, outcome{n: n, described: true}
		}
		d.Kind, d.Imm, d.Total = protocol.KindPiece, 0, uint32(n)
		o.push(d, piece, false)
	}
}

// sendRoom returns how long the next piece may be, and whether that is worth
// a descriptor.
func (q *qp) sendRoom(left int) (int, bool) {
	o := &q.out
	// A quarter of the buffer, so that the peer copies out while we copy in.
	most := min(left, len(o.Send)/4)
	room := min(o.sendRoom(), most)
	if room < most {
		o.refresh()
		room = min(o.sendRoom(), most)
	}
	toEnd := len(o.Send) - int(o.sent&uint64(len(o.Send)-1))
	return room, room >= min(most, protocol.MinSendBuf, toEnd)
}

var descriptorKinds = [...]uint8{
	verbs.OpSend: protocol.KindSend, verbs.OpSendWithImm: protocol.KindSendImm, verbs.OpSendWithInv: protocol.KindSendInv,
}

// lastPiece appends the descriptor that completes the receive.
func (q *qp) lastPiece(d *protocol.Descriptor, wr *verbs.SendWR, n int, solicited bool) {
	d.Kind, d.Imm, d.Total = descriptorKinds[wr.Opcode], wr.Imm, uint32(n)
	if wr.Opcode == verbs.OpSendWithInv {
		d.Imm = wr.InvalidateRKey
	}
	q.sq.sent, q.sq.begun = 0, false
	q.out.push(d, n, solicited)
}

// gather copies local memory into dst; false if a key, bounds or rights do
// not cover it. It may have copied a part then, into a buffer of the peer
// that a failed request leaves undefined anyway.
func (q *qp) gather(dst []byte, sgl []verbs.SGE) bool {
	for i := range sgl {
		e := &sgl[i]
		if e.Length == 0 {
			continue
		}
		src, ok := q.pd.localBytes(&q.sgl, e, 0)
		if !ok {
			if !q.pd.isNull(q.sgl, e) {
				return false
			}
			clear(dst[:e.Length])
			dst = dst[e.Length:]
			continue
		}
		dst = dst[copy(dst, src):]
	}
	return true
}

// localOK reports whether all of the local memory may be used.
func (q *qp) localOK(wr *verbs.SendWR, need verbs.Access) bool {
	if wr.Flags&verbs.SendInline != 0 {
		return true
	}
	for i := range wr.SGL {
		if wr.SGL[i].Length == 0 {
			continue
		}
		if _, ok := q.pd.localBytes(&q.sgl, &wr.SGL[i], need); !ok && !q.pd.isNull(q.sgl, &wr.SGL[i]) {
			return false
		}
	}
	return true
}

// gatherAt fills dst with the payload from byte skip on.
func (q *qp) gatherAt(dst []byte, wr *verbs.SendWR, skip int) bool {
	return gatherAt(q.pd, &q.sgl, dst, wr, skip)
}

func gatherAt(p *pd, last **region, dst []byte, wr *verbs.SendWR, skip int) bool {
	if wr.Flags&verbs.SendInline != 0 {
		for _, b := range wr.Inline {
			if skip >= len(b) {
				skip -= len(b)
				continue
			}
			dst = dst[copy(dst, b[skip:]):]
			skip = 0
		}
		return true
	}
	for i := range wr.SGL {
		e := wr.SGL[i]
		if skip >= int(e.Length) {
			skip -= int(e.Length)
			continue
		}
		src, ok := p.localBytes(last, &e, 0)
		if !ok {
			if !p.isNull(*last, &e) {
				return false
			}
			n := min(len(dst), int(e.Length)-skip)
			clear(dst[:n])
			dst, skip = dst[n:], 0
			continue
		}
		dst = dst[copy(dst, src[skip:]):]
		skip = 0
	}
	return true
}

// scatter copies src into local memory.
func (q *qp) scatter(sgl []verbs.SGE, src []byte) bool {
	return scatter(q.pd, &q.sgl, sgl, 0, src)
}

// compareSwap stores swap if the word is compare, and returns what it was.
func compareSwap(w *atomic.Uint64, compare, swap uint64) uint64 {
	for {
		old := w.Load()
		if old != compare || w.CompareAndSwap(compare, swap) {
			return old
		}
	}
}

// putNative stores v in the byte order of the machine, as the specification
// has it for the result of an atomic.
func putNative(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

// conclude gives a request that ran its completion, and fails the QP with it.
func (q *qp) conclude(wr *verbs.SendWR, v outcome) {
	if v.status == verbs.WCSuccess {
		if q.out.srq && v.described {
			q.acks.add(ack{pos: q.out.head - 1, id: wr.ID, op: wr.Opcode, n: v.n, signaled: q.signaled(wr)})
			q.retire()
			return
		}
		if q.acks.n != 0 {
			// It may not overtake those that wait for the peer's SRQ.
			q.acks.add(ack{pos: q.out.head - 1, id: wr.ID, op: wr.Opcode, n: v.n, signaled: q.signaled(wr)})
			return
		}
		if q.signaled(wr) {
			q.finish(wr.ID, wr.Opcode, v.n, verbs.WCSuccess)
		}
		return
	}
	if q.uc && q.concludeUnreliable(wr, v) {
		return
	}
	// Those before it are finished with it, in order: nothing can be known of
	// them any more.
	q.flushAcks(verbs.WCWRFlushErr)
	q.finish(wr.ID, wr.Opcode, 0, v.status)
	q.failLocked(failure{tell: v.tell})
}

// concludeUnreliable ends a failed request of a QP of the unreliable connection
// service; false if it ends as that of a reliable one. The peer tells such a QP
// nothing: a message that the peer does not take is lost, and its request succeeds
// all the same.
func (q *qp) concludeUnreliable(wr *verbs.SendWR, v outcome) bool {
	if v.cut {
		return false // no message may follow
	}
	q.sq.sent, q.sq.begun = 0, false
	switch v.status {
	case verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCRetryExcErr, verbs.WCRNRRetryExcErr, verbs.WCBadRespErr:
		if q.signaled(wr) {
			q.finish(wr.ID, wr.Opcode, wr.Len(), verbs.WCSuccess)
		}
		return true
	}
	// An error of our own stops the send queue alone.
	q.finish(wr.ID, wr.Opcode, 0, v.status)
	q.stopTimer()
	q.setState(stateSQE)
	q.flushSends(verbs.WCSuccess)
	return true
}

func (q *qp) signaled(wr *verbs.SendWR) bool {
	return (wr.Flags|q.always)&verbs.SendSignaled != 0
}

var wcOpcodes = [...]verbs.WCOpcode{
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteWithImm: verbs.WCWrite,
	verbs.OpSend: verbs.WCSend, verbs.OpSendWithImm: verbs.WCSend, verbs.OpSendWithInv: verbs.WCSend,
	verbs.OpRead: verbs.WCRead, verbs.OpCompareSwap: verbs.WCCompareSwap, verbs.OpFetchAdd: verbs.WCFetchAdd,
	verbs.OpLocalInv: verbs.WCLocalInv, verbs.OpBindMW: verbs.WCBindMW, verbs.OpFlush: verbs.WCFlush,
	verbs.OpAtomicWrite: verbs.WCAtomicWrite,
}

// finish adds a completion to the send CQ.
func (q *qp) finish(id uint64, op verbs.Opcode, n int, status verbs.WCStatus) {
	q.unpolled.Add(1)
	q.sendCQ.complete(&q.unpolled, verbs.WC{ID: id, Status: status, Opcode: wcOpcodes[op], ByteLen: uint32(n), QPN: q.num}, false)
}

// polled gives slots of a queue back: n completions were polled.
func polled(unpolled *atomic.Int32, n int32) {
	if unpolled != nil && n != 0 {
		unpolled.Add(-n)
	}
}
