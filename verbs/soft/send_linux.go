package soft

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/internal/prefetch"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// The path of a WRITE, with or without immediate:
//
//  1. PostSend enters sendMu. If nothing is queued before it, write checks
//     the peer's gate, the key, bounds and rights, and that the peer has a
//     receive and a free descriptor, from our own copies of its counters.
//  2. The payload is copied into the peer's region. A short one with immediate, of two QPs with
//     PlaceAtPoll, is copied into the descriptor: then two cache lines have to move, and not three or four.
//  3. The descriptor is filled in. Those of one call are published together,
//     unless much payload lies between them.
//  4. publish stores the first seq, a full fence, and loads the peer's arm
//     word. Only if that is set it costs a system call.
//  5. The cache lines that will be written to soon are asked for, because publish would wait
//     for them: those behind the payload, for a program that goes round a ring, and those of
//     the next descriptor but one (qp.prefetch).
//
// Everything else goes through postSlow. With nothing queued before it, postAlone lets
// attempt execute it; what cannot go on is put into the send queue (sendqueue_linux.go),
// from which drive takes it up again. permit looks whether the request has what
// it needs, and the operations of operation_linux.go do it. Either way conclude makes the
// completion.

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	if q.sendMu.Promised {
		q.sendMu.Enter()
	} else {
		q.sendMu.Begin()
	}
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
		q.prefetch()
	}
	if q.out.behind != 0 {
		prefetch.ForWrite(q.out.behind + prefetch.Line - 1) // that at behind is here, if it was written to
		q.out.behind = 0
	}
	switch {
	case q.pending:
		q.end()
	case q.sendMu.Promised:
		q.sendMu.Leave()
	default:
		q.sendMu.Mutex.Unlock()
	}
	return n, err
}

// prefetch asks for the cache lines of the next descriptor but one: the next one is being polled by the
// peer. Whoever has received something since the last post sends and receives in turn; then the peer polls
// longer, with these lines in its cache.
func (q *qp) prefetch() {
	o := &q.out
	if cursor := q.in.cursor.Load(); o.cursor != cursor {
		o.cursor = cursor
		return
	}
	i := o.index + 1
	if i >= o.lap {
		i = 0
	}
	prefetch.ForWrite(uintptr(unsafe.Pointer(&o.Ring[i])))
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
	var flags uint8
	if n > 0 {
		r := q.cached
		if r == nil || r.key != wr.RKey {
			return false
		}
		dst, ok := r.bytes(wr.RemoteAddr, uint64(n), verbs.AccessRemoteWrite)
		if !ok {
			return false
		}
		if withImm && o.atPoll && n <= protocol.InlinePayload {
			d := o.next()
			d.Addr, d.Total = wr.RemoteAddr, wr.RKey
			dst, flags = d.Data[:n], protocol.FlagInDescriptor
		} else {
			o.behind = uintptr(protocol.AddressOf(dst)) + uintptr(n)
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
		d.Kind, d.Flags = protocol.KindWriteImm, flags
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
	if q.acks.n != 0 {
		q.retire() // which may fail the QP
	}
	state := q.state.Load()
	if state < stateRTS {
		return errPostState
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

var (
	errPostState  = fmt.Errorf("%w: the QP is not in RTS", verbs.ErrInvalid)
	errQueueDepth = fmt.Errorf("%w: send queue", verbs.ErrQueueFull)
)

// postAlone runs a request that has nothing before it.
func (q *qp) postAlone(wr *verbs.SendWR) {
	state, v := q.attemptInOrder(wr)
	if state == finished {
		q.conclude(wr, v)
		q.open = q.mayRun()
		return
	}
	q.sq.add(wr, q.cap.MaxSendWR)
	q.open = false
	q.drive() // says what it waits for
}

// drive runs what is queued until something is missing again.
func (q *qp) drive() {
	for q.sq.n != 0 && q.runs() {
		if wait := time.Until(q.sq.notBefore); !q.sq.notBefore.IsZero() && wait > 0 {
			q.wakeIn(wait)
			break
		}
		e := q.sq.oldest()
		state, v := q.attemptInOrder(&e.wr)
		if state != finished {
			if q.block(state) {
				break
			}
			continue // also after give: what comes next may run, or the QP has failed
		}
		wr := e.wr
		q.sq.drop()
		q.conclude(&wr, v)
	}
	if q.out.Header != nil {
		q.out.publish()
	}
	q.noteDrained()
	q.open = q.mayRun()
}

// runs reports whether queued requests may run: in SQD only one that has
// begun.
func (q *qp) runs() bool {
	switch q.state.Load() {
	case stateRTS:
		return true
	case stateSQD:
		return q.sq.begun
	}
	return false
}

// progress is how far an attempt came: to the end, or to something that it
// has to wait for.
type progress uint8

const (
	finished  progress = iota
	needPeer           // not paired yet, or the peer is not in RTR yet
	needKey            // the peer has been asked about an rkey
	needRecv           // RNR: the peer has no receive
	needSpace          // the descriptor ring or the SEND buffer is full
	needAcks           // it fails, but those before it wait for the peer's SRQ
)

// outcome is how a request ended.
type outcome struct {
	status    verbs.WCStatus
	tell      protocol.FaultKind // what the responder learns of a failure
	n         int                // bytes
	cut       bool               // the peer has a part of the message, or has used a receive for it
	described bool               // it has a descriptor, so the peer's SRQ decides when it is done
}

// attemptInOrder is attempt, but what fails while those before it have no completion yet
// is tried again when they have.
func (q *qp) attemptInOrder(wr *verbs.SendWR) (progress, outcome) {
	state, v := q.attempt(wr)
	if state == finished && v.status != verbs.WCSuccess && q.acks.n != 0 {
		state = needAcks
	}
	return state, v
}

// attempt executes a request as far as it goes, with sendMu held. A request
// that it began and could not finish is resumed by the next attempt: only a
// SEND can be (sq.begun).
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
	n, gate := wr.Len(), q.out.Header.Gate.Load()
	switch {
	case gate&protocol.GateFailed != 0:
		return finished, outcome{status: verbs.WCRetryExcErr}
	case gate&protocol.GateOpen == 0:
		return needPeer, outcome{}
	case !q.out.sane():
		return finished, outcome{status: verbs.WCBadRespErr}
	case uint64(n) > maxMessageSize:
		return finished, outcome{status: verbs.WCLocLenErr}
	}
	p, mem, v := q.permit(wr, n, gate)
	if p != finished || v.status != verbs.WCSuccess {
		return p, v
	}
	switch wr.Opcode {
	case verbs.OpWrite, verbs.OpWriteWithImm:
		return q.attemptWrite(wr, n, mem)
	case verbs.OpRead:
		return q.attemptRead(wr, n, mem)
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return q.attemptAtomic(wr, protocol.Word64(mem))
	case verbs.OpAtomicWrite:
		return q.attemptAtomicWrite(wr, protocol.Word64(mem))
	case verbs.OpFlush:
		return q.attemptFlush(wr)
	default:
		return q.attemptSend(wr, n)
	}
}

// needs are what an operation has to have before it moves a byte.
type needs struct {
	gate   uint32       // what the peer's QP has to let in
	word   bool         // it is on 8 bytes of the peer, whose address is a multiple of 8
	local  verbs.Access // rights to the memory of its SGL
	remote verbs.Access // rights to the peer's memory, 0 if it names none
}

var needsOf = [...]needs{
	verbs.OpWrite:        {gate: protocol.GateWrite, remote: verbs.AccessRemoteWrite},
	verbs.OpWriteWithImm: {gate: protocol.GateWrite, remote: verbs.AccessRemoteWrite},
	verbs.OpSend:         {gate: protocol.GateOpen},
	verbs.OpSendWithImm:  {gate: protocol.GateOpen},
	verbs.OpSendWithInv:  {gate: protocol.GateOpen},
	verbs.OpRead:         {gate: protocol.GateRead, local: verbs.AccessLocalWrite, remote: verbs.AccessRemoteRead},
	verbs.OpCompareSwap:  {gate: protocol.GateAtomic, word: true, local: verbs.AccessLocalWrite, remote: verbs.AccessRemoteAtomic},
	verbs.OpFetchAdd:     {gate: protocol.GateAtomic, word: true, local: verbs.AccessLocalWrite, remote: verbs.AccessRemoteAtomic},
	verbs.OpAtomicWrite:  {gate: protocol.GateWrite, word: true, remote: verbs.AccessRemoteWrite},
	// attemptFlush looks at its range, which is not the payload's
	verbs.OpFlush: {gate: protocol.GateFlush},
}

// permit looks whether a request of n bytes has what its operation needs, and returns the
// memory of the peer that it names. A SEND that has begun is not asked again.
func (q *qp) permit(wr *verbs.SendWR, n int, gate uint32) (progress, []byte, outcome) {
	if q.sq.begun {
		return finished, nil, outcome{}
	}
	need := &needsOf[wr.Opcode]
	key, asks := peerKey(wr, n)
	refused := func(status verbs.WCStatus, tell protocol.FaultKind) (progress, []byte, outcome) {
		return finished, nil, outcome{status: status, tell: tell}
	}
	switch {
	case gate&need.gate == 0, need.word && wr.RemoteAddr%8 != 0:
		return refused(verbs.WCRemInvReqErr, protocol.FaultRequest)
	case need.word && n != 8:
		return refused(verbs.WCLocLenErr, protocol.FaultGone)
	case wr.Opcode != verbs.OpFlush && !q.localOK(wr, need.local):
		// a FLUSH has no memory of its own
		return refused(verbs.WCLocProtErr, protocol.FaultGone)
	}
	if asks {
		if p, v := q.resolve(key); p != finished || v.status != verbs.WCSuccess {
			return p, nil, v
		}
	}
	if need.remote == 0 || n == 0 {
		return finished, nil, outcome{}
	}
	mem, ok := q.cached.bytes(wr.RemoteAddr, uint64(n), need.remote)
	switch {
	case !ok:
		return refused(verbs.WCRemAccessErr, protocol.FaultAccess)
	case need.word && protocol.AddressOf(mem)%8 != 0:
		// An MR over a slice of the caller may begin anywhere; this one does
		// not, as its addresses are real. A peer's may lie about its address.
		return refused(verbs.WCRemInvReqErr, protocol.FaultRequest)
	}
	return finished, mem, outcome{}
}

// peerKey returns the key of the peer that a request of n bytes uses; false if it uses none.
func peerKey(wr *verbs.SendWR, n int) (uint32, bool) {
	switch wr.Opcode {
	case verbs.OpSendWithInv:
		return wr.InvalidateRKey, true
	case verbs.OpFlush:
		return wr.RKey, true
	}
	return wr.RKey, n > 0 && needsOf[wr.Opcode].remote != 0
}

func fails(status verbs.WCStatus, tell protocol.FaultKind) (progress, outcome) {
	return finished, outcome{status: status, tell: tell}
}

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

// finish adds a completion to the send CQ.
func (q *qp) finish(id uint64, op verbs.Opcode, n int, status verbs.WCStatus) {
	q.unpolled.Add(1)
	q.sendCQ.complete(&q.unpolled, verbs.WC{ID: id, Status: status, Opcode: wcOpcodes[op], ByteLen: uint32(n), QPN: q.num}, false)
}

var wcOpcodes = [...]verbs.WCOpcode{
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteWithImm: verbs.WCWrite,
	verbs.OpSend: verbs.WCSend, verbs.OpSendWithImm: verbs.WCSend, verbs.OpSendWithInv: verbs.WCSend,
	verbs.OpRead: verbs.WCRead, verbs.OpCompareSwap: verbs.WCCompareSwap, verbs.OpFetchAdd: verbs.WCFetchAdd,
	verbs.OpLocalInv: verbs.WCLocalInv, verbs.OpBindMW: verbs.WCBindMW, verbs.OpFlush: verbs.WCFlush,
	verbs.OpAtomicWrite: verbs.WCAtomicWrite,
}

// polled gives slots of a queue back: n completions were polled.
func polled(unpolled *atomic.Int32, n int32) {
	if unpolled != nil && n != 0 {
		unpolled.Add(-n)
	}
}

// WQEBytes is the descriptor that the peer gets, where it gets one: a long SEND makes several.
func (q *qp) WQEBytes(wr *verbs.SendWR) int {
	switch wr.Opcode {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWriteWithImm:
		return protocol.DescriptorSize
	}
	return 0
}
