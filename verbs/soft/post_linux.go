package soft

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
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

// write executes a WRITE for which nothing unusual has to be done. It returns
// false, with nothing done, for everything else.
func (q *qp) write(wr *verbs.SendWR) bool {
	o := &q.out
	const lets = gateOpen | gateWrite
	if wr.Opcode > verbs.OpWriteWithImm || o.hdr.gate.Load()&(lets|gateFailed) != lets {
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
		d.kind, d.flags = kindWriteImm, 0
		d.imm, d.length = wr.Imm, uint32(n)
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
	case state == stateErr:
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

// conclude gives a request that ran its completion, and fails the QP with it.
func (q *qp) conclude(wr *verbs.SendWR, v verdict) {
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
	// Those before it are finished with it, in order: nothing can be known of
	// them any more.
	q.flushAcks(verbs.WCWRFlushErr)
	q.finish(wr.ID, wr.Opcode, 0, v.status)
	q.failLocked(failure{tell: v.tell})
}

func (q *qp) signaled(wr *verbs.SendWR) bool {
	return (wr.Flags|q.always)&verbs.SendSignaled != 0
}

var wcOpcodes = [...]verbs.WCOpcode{
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteWithImm: verbs.WCWrite,
	verbs.OpSend: verbs.WCSend, verbs.OpSendWithImm: verbs.WCSend, verbs.OpSendWithInv: verbs.WCSend,
	verbs.OpRead: verbs.WCRead, verbs.OpCompareSwap: verbs.WCCompareSwap, verbs.OpFetchAdd: verbs.WCFetchAdd,
}

// finish adds a completion to the send CQ.
func (q *qp) finish(id uint64, op verbs.Opcode, n int, status verbs.WCStatus) {
	q.unpolled.Add(1)
	q.sendCQ.complete(q, verbs.WC{ID: id, Status: status, Opcode: wcOpcodes[op], ByteLen: uint32(n), QPN: q.num}, false)
}

// polled gives slots of the send queue back: n completions were polled.
func (q *qp) polled(n int32) {
	if q != nil && n != 0 {
		q.unpolled.Add(-n)
	}
}
