package soft

import (
	"github.com/seed-b9b531af/ramjet/verbs"
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

// attempt executes a request as far as it goes, with sendMu held. A request
// that it began and could not finish is resumed by the next attempt: only a
// SEND can be (sq.sent).
func (q *qp) attempt(wr *verbs.SendWR) (progress, verdict) {
	if q.link == nil {
		return needPeer, verdict{}
	}
	gate := q.out.hdr.gate.Load()
	switch {
	case gate&gateFailed != 0:
		return finished, verdict{status: verbs.WCRetryExcErr}
	case gate&gateOpen == 0:
		return needPeer, verdict{}
	case !q.out.sane():
		return finished, verdict{status: verbs.WCBadRespErr}
	case uint64(wr.Len()) > maxMessageSize:
		return finished, verdict{status: verbs.WCLocLenErr}
	}
	switch wr.Opcode {
	case verbs.OpWrite, verbs.OpWriteWithImm:
		return q.attemptWrite(wr, gate)
	case verbs.OpRead:
		return q.attemptRead(wr, gate)
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return q.attemptAtomic(wr, gate)
	default:
		return q.attemptSend(wr)
	}
}

func fails(status verbs.WCStatus, tell faultKind) (progress, verdict) {
	return finished, verdict{status: status, tell: tell}
}

func (q *qp) attemptWrite(wr *verbs.SendWR, gate uint32) (progress, verdict) {
	n := wr.Len()
	if gate&gateWrite == 0 {
		return fails(verbs.WCRemInvReqErr, faultRequest)
	}
	if !q.localOK(wr, 0) {
		return fails(verbs.WCLocProtErr, faultGone)
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
			return p, verdict{}
		}
	}
	if wr.Flags&verbs.SendInline != 0 {
		for _, b := range wr.Inline {
			dst = dst[copy(dst, b):]
		}
	} else if !q.gather(dst, wr.SGL) {
		return fails(verbs.WCLocProtErr, faultGone)
	}
	if withImm {
		q.out.recvs++
		d := q.out.next()
		d.kind, d.flags = kindWriteImm, 0
		d.imm, d.length = wr.Imm, uint32(n)
		q.out.push(d, n, wr.Flags&verbs.SendSolicited != 0)
	}
	return finished, verdict{n: n, described: withImm}
}

// canDescribe says what is missing for a message that uses up a receive.
func (q *qp) canDescribe() progress {
	f := q.dev.faults.Load()
	switch {
	case f != nil && f.refuseReceive(), !q.out.hasReceive():
		if !q.sq.refused {
			q.sq.refused = true
			rnrs.Add(1)
		}
		return needRecv
	case !q.out.hasEntry():
		return needSpace
	}
	return finished
}

func (q *qp) attemptRead(wr *verbs.SendWR, gate uint32) (progress, verdict) {
	n := wr.Len()
	if gate&gateRead == 0 {
		return fails(verbs.WCRemInvReqErr, faultRequest)
	}
	if !q.localOK(wr, verbs.AccessLocalWrite) {
		return fails(verbs.WCLocProtErr, faultGone)
	}
	if n > 0 {
		p, src, v := q.remoteBytes(wr, uint64(n), verbs.AccessRemoteRead)
		if p != finished || v.status != verbs.WCSuccess {
			return p, v
		}
		if !q.scatter(wr.SGL, src) {
			return fails(verbs.WCLocProtErr, faultGone)
		}
	}
	return finished, verdict{n: n}
}

// attemptAtomic works on the word in place. Atomics of the specification are
// atomic among each other at one device; these are so for all processes that
// have the memory mapped, and with sync/atomic in its owner.
func (q *qp) attemptAtomic(wr *verbs.SendWR, gate uint32) (progress, verdict) {
	switch {
	case gate&gateAtomic == 0, wr.RemoteAddr%8 != 0:
		return fails(verbs.WCRemInvReqErr, faultRequest)
	case wr.Len() != 8:
		return fails(verbs.WCLocLenErr, faultGone)
	case !q.localOK(wr, verbs.AccessLocalWrite):
		return fails(verbs.WCLocProtErr, faultGone)
	}
	p, mem, v := q.remoteBytes(wr, 8, verbs.AccessRemoteAtomic)
	if p != finished || v.status != verbs.WCSuccess {
		return p, v
	}
	if addressOf(mem)%8 != 0 {
		// An MR over a slice of the caller may begin anywhere; this one does
		// not, as its addresses are real. A peer's may lie about its address.
		return fails(verbs.WCRemInvReqErr, faultRequest)
	}
	word := word64(mem)
	var old uint64
	if wr.Opcode == verbs.OpFetchAdd {
		old = word.Add(wr.CompareAdd) - wr.CompareAdd
	} else {
		old = compareSwap(word, wr.CompareAdd, wr.Swap)
	}
	var bytes [8]byte
	putNative(bytes[:], old)
	if !q.scatter(wr.SGL, bytes[:]) {
		return fails(verbs.WCLocProtErr, faultGone)
	}
	return finished, verdict{n: 8}
}

// attemptSend puts a message into the peer's SEND buffer, piece by piece if
// it is longer than what is free there.
func (q *qp) attemptSend(wr *verbs.SendWR) (progress, verdict) {
	o := &q.out
	n := wr.Len()
	if q.sq.sent == 0 && !q.sq.begun {
		if !q.localOK(wr, 0) {
			return fails(verbs.WCLocProtErr, faultGone)
		}
		if wr.Opcode == verbs.OpSendWithInv {
			if p, v := q.resolve(wr.InvalidateRKey); p != finished || v.status != verbs.WCSuccess {
				return p, v
			}
		}
		if p := q.canDescribe(); p != finished {
			return p, verdict{}
		}
		if !o.srq && uint64(n) > uint64(o.lengths[o.recvs&uint64(len(o.lengths)-1)].Load()) {
			return fails(verbs.WCRemInvReqErr, faultTooLong)
		}
		o.recvs++
		q.sq.begun = true
	}
	solicited := wr.Flags&verbs.SendSolicited != 0
	if n <= inlinePayload {
		if !o.hasEntry() {
			return needSpace, verdict{}
		}
		d := o.next()
		if !q.gatherAt(d.data[:n], wr, 0) {
			return fails(verbs.WCLocProtErr, faultGone)
		}
		d.flags, d.length = flagInDescriptor, uint32(n)
		q.lastPiece(d, wr, n, solicited)
		return finished, verdict{n: n, described: true}
	}
	for {
		room, enough := q.sendRoom(n - q.sq.sent)
		if !enough || !o.hasEntry() {
			o.publish()
			return needSpace, verdict{}
		}
		piece := min(room, n-q.sq.sent)
		d := o.next()
		at := o.sent & uint64(len(o.send)-1)
		if !q.gatherAt(o.send[at:][:piece], wr, q.sq.sent) {
			return fails(verbs.WCLocProtErr, faultGone)
		}
		o.sent += uint64((piece + sendAlign - 1) &^ (sendAlign - 1))
		d.flags, d.length = 0, uint32(piece)
		if q.sq.sent += piece; q.sq.sent == n {
			q.lastPiece(d, wr, n, solicited)
			return finished, verdict{n: n, described: true}
		}
		d.kind, d.imm, d.total = kindPiece, 0, uint32(n)
		o.push(d, piece, false)
	}
}

// sendRoom returns how long the next piece may be, and whether that is worth
// a descriptor.
func (q *qp) sendRoom(left int) (int, bool) {
	o := &q.out
	// A quarter of the buffer, so that the peer copies out while we copy in.
	most := min(left, len(o.send)/4)
	room := min(o.sendRoom(), most)
	if room < most {
		o.refresh()
		room = min(o.sendRoom(), most)
	}
	toEnd := len(o.send) - int(o.sent&uint64(len(o.send)-1))
	return room, room >= min(most, minSendBuf, toEnd)
}

var descriptorKinds = [...]uint8{
	verbs.OpSend: kindSend, verbs.OpSendWithImm: kindSendImm, verbs.OpSendWithInv: kindSendInv,
}

// lastPiece appends the descriptor that completes the receive.
func (q *qp) lastPiece(d *descriptor, wr *verbs.SendWR, n int, solicited bool) {
	d.kind, d.imm, d.total = descriptorKinds[wr.Opcode], wr.Imm, uint32(n)
	if wr.Opcode == verbs.OpSendWithInv {
		d.imm = wr.InvalidateRKey
	}
	q.sq.sent, q.sq.begun = 0, false
	q.out.push(d, n, solicited)
}
