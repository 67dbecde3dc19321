package soft

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// The operations, and after them the local memory that they read and write. attempt calls
// each with sendMu held and with the length of the message, and learns how far it came.

// attemptWrite is write with all that write leaves to others: it may have to ask for the
// key or to wait for a receive, and says what was wrong.
func (q *qp) attemptWrite(wr *verbs.SendWR, n int, gate uint32) (progress, outcome) {
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

// attemptRead copies what is in the peer's region to where the request wants it.
func (q *qp) attemptRead(wr *verbs.SendWR, n int, gate uint32) (progress, outcome) {
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
func (q *qp) attemptAtomic(wr *verbs.SendWR, n int, gate uint32) (progress, outcome) {
	switch {
	case gate&protocol.GateAtomic == 0, wr.RemoteAddr%8 != 0:
		return fails(verbs.WCRemInvReqErr, protocol.FaultRequest)
	case n != 8:
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
func (q *qp) attemptSend(wr *verbs.SendWR, n int) (progress, outcome) {
	o := &q.out
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

// attemptBind and attemptInvalidate are requests that go nowhere.
func (q *qp) attemptBind(wr *verbs.SendWR) (progress, outcome) {
	w, ok := wr.Bind.MW.Driver().(*window)
	if !ok || !w.bind(q, wr.Bind) {
		return fails(verbs.WCMWBindErr, protocol.FaultGone)
	}
	return finished, outcome{}
}

func (q *qp) attemptInvalidate(wr *verbs.SendWR) (progress, outcome) {
	if !q.takeKey(wr.InvalidateRKey) {
		return fails(verbs.WCLocQPOpErr, protocol.FaultGone)
	}
	return finished, outcome{}
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
