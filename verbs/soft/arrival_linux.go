package soft

import (
	"github.com/seed-b9b531af/ramjet/verbs"
)

// takeOther handles a descriptor that is not a WRITE that uses up
// a receive of the QP's own queue. made is the number of completions, 0 or 1;
// ok is false if the descriptor stays where it is.
func (in *inbound) takeOther(d *descriptor, wc *verbs.WC) (made int, ok bool) {
	// The peer can change the entry while we look: this is the only look.
	c := descriptorCopy{kind: d.kind, flags: d.flags, imm: d.imm, length: d.length, total: d.total}
	if c.kind < kindWriteImm || c.kind > kindPiece || (c.kind == kindWriteImm && in.partial.active) {
		in.condemn(verbs.EventQPFatal)
		return 0, false
	}
	if !in.partial.active && !in.begin() {
		return 0, false
	}
	p := &in.partial
	if c.kind != kindWriteImm {
		data, ok := in.payload(d, &c)
		if !ok {
			in.condemn(verbs.EventQPFatal)
			return 0, false
		}
		if !in.place(&c, data) {
			return 0, false
		}
		if c.kind == kindPiece {
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
	case kindWriteImm:
		wc.Opcode, wc.Flags, wc.Imm = verbs.WCRecvWriteWithImm, verbs.WCWithImm, c.imm
	case kindSendImm:
		wc.Flags, wc.Imm = verbs.WCWithImm, c.imm
	case kindSendInv:
		if !in.invalidate(c.imm) {
			wc.Status = verbs.WCLocAccessErr
			in.fail(failure{tell: faultReceiver, event: verbs.EventQPAccessErr, raise: true})
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
			in.condemn(verbs.EventQPFatal)
			return false
		}
		p.recv, p.sgl = *in.recvs.at(tail), in.recvs.sgl(tail)
	}
	p.active, p.done = true, 0
	return true
}

// starve tells the peer that the SRQ had nothing for the next descriptor.
func (in *inbound) starve() {
	hdr, pos := in.seg.hdr, in.pos
	if hdr.starved.Load() == pos+1 {
		return
	}
	in.told = pos
	in.toldFreed = in.freed
	hdr.released.Store(in.freed)
	hdr.consumed.Store(pos)
	hdr.starved.Store(pos + 1)
	in.answerWant()
}

// payload returns what a SEND brought: in the descriptor, or in the SEND
// buffer, whose pieces follow each other without gaps.
func (in *inbound) payload(d *descriptor, c *descriptorCopy) ([]byte, bool) {
	p := &in.partial
	last := c.kind != kindPiece
	if uint64(p.done)+uint64(c.length) > uint64(c.total) || last != (p.done+c.length == c.total) || (!last && c.length == 0) {
		return nil, false
	}
	if c.flags&flagInDescriptor != 0 {
		if c.length > inlinePayload {
			return nil, false
		}
		return d.data[:c.length], true
	}
	at := in.freed & uint64(len(in.seg.send)-1)
	if uint64(c.length) > uint64(len(in.seg.send))-at {
		return nil, false
	}
	in.freed += (uint64(c.length) + sendAlign - 1) &^ (sendAlign - 1)
	in.eager = true
	return in.seg.send[at:][:c.length], true
}

// place copies a piece to where the receive wants it.
func (in *inbound) place(c *descriptorCopy, data []byte) bool {
	p := &in.partial
	if c.total > p.recv.total {
		in.fail(failure{recv: verbs.WCLocLenErr, tell: faultReceiveTooShort})
		return false
	}
	if !scatter(in.q.pd, &in.sgl, p.sgl, int(p.done), data) {
		in.fail(failure{recv: verbs.WCLocProtErr, tell: faultReceiver})
		return false
	}
	p.done += c.length
	return true
}

// invalidate takes an rkey of ours away at the peer's wish.
func (in *inbound) invalidate(key uint32) bool {
	r := in.q.dev.region(key)
	if r == nil || r.pd != in.q.pd {
		return false
	}
	r.invalidate()
	return true
}
