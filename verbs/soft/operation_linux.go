package soft

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// The operations. attempt calls each with sendMu held, with the length of the message and,
// if the request names some, with the peer's memory. permit has looked whether the request
// may use that, and its own. attempt learns how far the operation came.

// attemptWrite may have to wait for a receive, which write leaves to it.
func (q *qp) attemptWrite(wr *verbs.SendWR, n int, dst []byte) (progress, outcome) {
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
func (q *qp) attemptRead(wr *verbs.SendWR, n int, src []byte) (progress, outcome) {
	if n > 0 && !q.scatter(wr.SGL, src) {
		return fails(verbs.WCLocProtErr, protocol.FaultGone)
	}
	return finished, outcome{n: n}
}

// attemptAtomic works on the word in place. Atomics of the specification are
// atomic among each other at one device; these are so for all processes that
// have the memory mapped, and with sync/atomic in its owner.
func (q *qp) attemptAtomic(wr *verbs.SendWR, word *atomic.Uint64) (progress, outcome) {
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
func (q *qp) attemptAtomicWrite(wr *verbs.SendWR, word *atomic.Uint64) (progress, outcome) {
	var bytes [8]byte
	q.gatherAt(bytes[:], wr, 0) // always inline
	word.Store(binary.NativeEndian.Uint64(bytes[:]))
	return finished, outcome{n: 8}
}

// attemptFlush has nothing to do but to look whether it may: what was written before
// is in memory that the whole host sees alike, and the count of the completion is
// a full fence.
func (q *qp) attemptFlush(wr *verbs.SendWR) (progress, outcome) {
	n, at := uint64(wr.Flush.Length), wr.RemoteAddr
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
	if !q.sq.begun {
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
