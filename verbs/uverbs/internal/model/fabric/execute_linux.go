//go:build amd64 || arm64

package fabric

import "time"

// outcome is what became of a request at one look.
type outcome int

const (
	done  outcome = iota
	again         // the QP waits
	ended         // it has failed, and its completion is written
)

// Execute does what is posted, and says whether there was something.
func (q *QP) Execute(now time.Time) bool {
	const most = 64 // requests in a row, for the sake of the other QPs
	q.scheduled = false
	switch {
	case q.Port.QPs[q.Number] != q || q.Queues.Broken():
		return false
	case q.State == StateError || q.State == StateSQE:
		return q.Queues.Flush()
	case q.State != StateRTS:
		return false // Modify looks again
	case now.Before(q.Wait):
		q.Schedule()
		return false
	}
	work := false
	for n := 0; q.Done != q.Posted; n++ {
		if n == most || n > 0 && q.Port.fabric.Late() {
			q.Schedule()
			break
		}
		w := q.Queues.Next()
		if w == nil {
			q.Schedule()
			break
		}
		if !q.trying {
			q.Queues.Begin(w)
			q.trying, q.unanswered, q.retries, q.rnr = true, false, int(q.Attr.Retry), int(q.Attr.RNRRetry)
			if w.Op.Answered() {
				q.countBurst(w)
			}
		}
		result := q.perform(w, now)
		if result == again {
			q.Schedule()
			return work
		}
		q.Done += w.Slots
		q.trying, work = false, true
		if result == ended {
			return work
		}
		q.Port.fabric.Counted.Requests++
	}
	return work
}

// countBurst counts the READs and atomics that a device may have sent before the first one
// was answered, with this one: those that were posted when the one before was executed. A
// fence waits for all.
func (q *QP) countBurst(w *Request) {
	if w.Fenced || int16(q.known-q.Done) <= 0 {
		q.burst = 0
	}
	q.burst = min(q.burst+1, depth(q.Attr.MaxRead))
	q.known = q.Posted
}

// perform carries out one request.
func (q *QP) perform(w *Request, now time.Time) outcome {
	if w.Op == Nop {
		q.Queues.Complete(w, "", 0)
		return done
	}
	switch {
	case w.Op == ChangeKey && q.Service == UD, w.Op == SendInv && !q.Service.reliable():
		return q.failed(w, LocalOperation)
	case w.Op == ChangeKey:
		if cause := w.Change(); cause != "" {
			return q.failed(w, cause)
		}
		q.Queues.Complete(w, "", 0)
		return done
	}
	if q.Service == UD && !w.Op.Receives() || q.Service == UC && w.Op.Answered() || q.Service == UD && w.Op == WriteImm {
		return q.failed(w, LocalOperation)
	}
	if w.Op.Atomic() && q.Port.NoAtomics {
		return q.failed(w, LocalOperation) // a guess: the kernel only has the QP refuse those of its peer
	}
	longest := uint64(maxMessage)
	if q.Service == UD {
		longest = mtu
	}
	if w.Length > longest || w.Op.Atomic() && w.Length != 8 {
		return q.failed(w, LocalLength)
	}
	access := uint32(0)
	if w.Op.Answered() {
		access = AccessLocalWrite
	}
	local, ok := q.Port.resolveList(q.PD, w.List, access, w.Length)
	if !ok {
		return q.failed(w, LocalProtection)
	}
	if q.Service == UD {
		q.datagram(w, local)
		q.Queues.Complete(w, "", 0)
		return done
	}
	p := q.peer()
	if p == nil {
		if q.Service.reliable() {
			return q.retry(w, now)
		}
		q.Queues.Complete(w, "", 0)
		return done
	}
	cause, missing := p.respond(w, local, q)
	switch {
	case q.Service == UC: // nobody answers
	case missing:
		return q.notReady(w, p, now)
	case cause != "":
		return q.failed(w, cause)
	}
	bytes := uint32(0)
	if w.Op.Answered() {
		bytes = uint32(w.Length)
	}
	q.Queues.Complete(w, "", bytes)
	return done
}

func (q *QP) failed(w *Request, cause Status) outcome {
	if q.Service.reliable() {
		q.Fail(w, cause)
		return ended
	}
	q.Queues.Complete(w, cause, 0)
	q.State = StateSQE
	q.Schedule()
	return ended
}

// retry waits for an answer that does not come, as often as the QP may.
func (q *QP) retry(w *Request, now time.Time) outcome {
	if q.Attr.Timeout == 0 {
		q.Wait = now.Add(time.Millisecond) // for ever
		return again
	}
	switch {
	case !q.unanswered:
		q.unanswered = true
	case q.retries == 0:
		return q.failed(w, RetriesExceeded)
	default:
		q.retries--
	}
	q.Wait = now.Add(time.Duration(4096) << (q.Attr.Timeout & 31))
	return again
}

// notReady waits as long as the peer says, if the QP may.
func (q *QP) notReady(w *Request, p *QP, now time.Time) outcome {
	const without = 7 // end
	if q.rnr == 0 {
		return q.failed(w, RNRRetriesExceeded)
	}
	if q.rnr != without {
		q.rnr--
	}
	q.unanswered = false // it was answered by this
	q.Wait = now.Add(rnrTimer(p.Attr.MinRNR))
	return again
}

// rnrTimer is the time of a code (IBA 9.7.5.2.8).
func rnrTimer(code byte) time.Duration {
	units := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
		4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
	return time.Duration(units[code&31]) * 10 * time.Microsecond
}

// respond is the responder's part: it says how the requester's request fails, or
// that a receive request is missing. It then has done nothing. A READ or atomic is one of a burst
// that may be here at once.
func (q *QP) respond(w *Request, local []piece, from *QP) (cause Status, missing bool) {
	if q.State == StateRTR && !q.established {
		q.established = true
		q.Queues.Event(EventCommEst)
	}
	tooMany := w.Op.Answered() && from.burst > depth(q.Attr.MaxDest) // IBA 9.7.5.2.4: more than it has room for
	// IBA 9.7.4.1.6: the first packet of several is not as long as it has to be.
	otherSize := !w.Op.Answered() && q.Attr.MTU != from.Attr.MTU && w.Length > 128<<min(q.Attr.MTU, from.Attr.MTU)
	switch {
	case otherSize && q.Service == UC:
		return RemoteInvalid, false // dropped
	case tooMany || otherSize:
		q.Queues.Event(EventQPRequest)
		q.toError()
		return RemoteInvalid, false
	}
	receives, ok := q.receiverOf(w)
	if !ok { // that it is this status and this event is a guess
		q.Queues.Event(EventQPRequest)
		q.toError()
		return RemoteInvalid, false
	}
	var remote []piece
	if w.Op.Remote() && w.Length > 0 {
		p, cause := q.remote(w)
		if cause != "" {
			return cause, false
		}
		remote = []piece{p}
	}
	var index uint16
	if w.Op.Receives() {
		var list []Scatter
		var ok bool
		if list, index, ok = receives.Next(); !ok {
			return "", true
		}
		if receives.Shared() && w.Op != WriteImm && q.Port.faults(list) {
			// The receive is used up, and the driver has to post it again (of libmlx5 cq.c, is_odp_pfault_err).
			receives.Consume()
			receives.received(index, Receipt{Status: PageFault})
			return "", true
		}
		if w.Op != WriteImm {
			remote, cause = q.buffers(receives.PD(), list, w.Length)
		}
		if cause != "" {
			receives.Consume()
			receives.received(index, Receipt{Status: cause})
			q.toError()
			if cause == LocalLength {
				return RemoteInvalid, false
			}
			return RemoteOperation, false
		}
	}
	if err := q.move(w, local, remote); err != nil {
		// Registered memory that is gone: the device would have pinned it.
		q.Port.fabric.Logf("QP %#x: %v", q.Number, err)
		q.toError()
		return RemoteOperation, false
	}
	if w.Op == SendInv && !q.takeAway(be.Uint32(w.Imm[:])) {
		receives.Consume()
		receives.received(index, Receipt{Status: LocalAccess})
		q.Queues.Event(EventQPAccess)
		q.toError()
		return RemoteAccess, false
	}
	if w.Op.Receives() {
		receives.Consume()
		receives.received(index, w.receipt())
	}
	return "", false
}

// receipt is what the receiver of the message is told.
func (w *Request) receipt() Receipt {
	return Receipt{Op: w.Op, Bytes: uint32(w.Length), Imm: w.Imm, Solicited: w.Solicited}
}

// buffers returns where a message goes.
func (q *QP) buffers(pd *PD, list []Scatter, length uint64) ([]piece, Status) {
	room := uint64(0)
	for _, s := range list {
		room += uint64(s.Size)
	}
	if room < length {
		return nil, LocalLength
	}
	pieces, ok := q.Port.resolveList(pd, list, AccessLocalWrite, length)
	if !ok {
		return nil, LocalProtection
	}
	return pieces, ""
}

// remote checks what a request wants to access here.
func (q *QP) remote(w *Request) (piece, Status) {
	access := uint32(AccessRemoteWrite)
	switch {
	case w.Op == Read:
		access = AccessRemoteRead
	case w.Op.Atomic():
		access = AccessRemoteAtomic
	}
	p, ok := piece{}, false
	allowed := q.Attr.Allowed()&access != 0
	if allowed {
		p, ok = q.resolveRemote(w.RKey, w.Addr, w.Length, access)
	}
	switch {
	case !allowed && q.Service != UC:
		// What the QP does not take at all is an invalid request (IBA 9.7.5.2.4).
		q.Queues.Event(EventQPRequest)
		q.toError()
		return p, RemoteInvalid
	case !ok && q.Service == UC:
		return p, RemoteAccess // dropped
	case !ok:
		q.Queues.Event(EventQPAccess)
		q.toError()
		return p, RemoteAccess
	case w.Op.Atomic() && w.Addr%8 != 0:
		q.Queues.Event(EventQPRequest)
		q.toError()
		return p, RemoteInvalid
	}
	return p, ""
}

// move carries the data.
func (q *QP) move(w *Request, local, remote []piece) error {
	buffer := q.Port.fabric.buffer
	switch {
	case w.Length == 0:
		return nil
	case w.Op == Read:
		return transfer(local, remote, buffer)
	case w.Op.Atomic():
		var word [8]byte
		at := remote[0]
		if err := at.read(word[:]); err != nil {
			return err
		}
		before := le.Uint64(word[:])
		after := before + w.SwapAdd
		if w.Op == Compare {
			after = before
			if before == w.Equal {
				after = w.SwapAdd
			}
		}
		if err := store(local, word[:]); err != nil {
			return err
		}
		le.PutUint64(word[:], after)
		return at.write(word[:])
	case w.Inline != nil:
		return store(remote, w.Inline)
	}
	return transfer(remote, local, buffer)
}
