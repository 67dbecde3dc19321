//go:build amd64 || arm64

package mlx5

import "time"

// outcome is what became of a WQE at one look.
type outcome int

const (
	done  outcome = iota
	again         // the QP waits
	ended         // the request has failed, and its CQE is written
)

// blocks is the number of basic blocks of a WQE.
func blocks(size int) uint16 { return uint16((size + basicBlock - 1) / basicBlock) }

// head returns the control segment of the WQE that is next. If that is none, the QP is in
// the error state and it is false.
func (q *queuePair) head() (control, bool) {
	b, ok := q.read(segmentSize)
	w := parseControl(b)
	f := q.device().fabric
	switch {
	case !ok:
		q.lose()
		return w, false
	case uint32(q.posted-q.done) > q.sendSize: // which post has said
		q.state = stateError
		q.posted = q.done
		q.event(eventQPFatal)
		return w, false
	case w.index != q.done || w.qpn != q.qpn || w.size == 0 || w.size > maxWQE || blocks(w.size) > q.posted-q.done:
		f.violation("QP %#x: WQE %d of %d posted is for WQE %d of QP %#x with %d bytes", q.qpn, q.done, q.posted, w.index, w.qpn, w.size)
		q.state = stateError
		q.posted = q.done
		q.event(eventQPFatal)
		return w, false
	}
	return w, true
}

// lose ends a QP whose send queue is memory that the program no longer has, which is no violation:
// the device would have pinned it.
func (q *queuePair) lose() {
	q.state = stateError
	q.posted = q.done
}

// read returns n bytes of the send queue from the WQE that is next; the queue is a ring.
func (q *queuePair) read(n int) ([]byte, bool) { return q.readAt(q.done, n) }

func (q *queuePair) readAt(index uint16, n int) ([]byte, bool) {
	b := make([]byte, n)
	at := (uint32(index) & (q.sendSize - 1)) * basicBlock
	first := min(n, int(q.sendSize*basicBlock-at))
	memory := q.context.memory
	return b, memory.Read(q.send+uint64(at), b[:first]) == nil && memory.Read(q.send, b[first:]) == nil
}

// sendRest sends the datagrams of a QP that is about to be destroyed. A device has seen a doorbell long before
// the command that follows it, and programs count on that: nothing tells them when an unsignaled datagram is on its way.
func (q *queuePair) sendRest() {
	if q.context.takeDoorbells() {
		q.context.readRecords()
	}
	for q.done != q.posted && q.execute(time.Now()) {
	}
}

// execute does what is posted, and says whether there was something.
func (q *queuePair) execute(now time.Time) bool {
	const most = 64 // WQEs in a row, for the sake of the other QPs
	q.scheduled = false
	switch {
	case q.device().qps[q.qpn] != q || q.sendCQ.dead:
		return false
	case q.state == stateError || q.state == stateSQE:
		return q.flush()
	case q.state != stateRTS:
		return false // modify looks again
	case now.Before(q.wait):
		q.schedule()
		return false
	}
	work := false
	for n := 0; q.done != q.posted; n++ {
		if n == most || n > 0 && q.device().fabric.late() {
			q.schedule()
			break
		}
		c, ok := q.head()
		if !ok {
			q.schedule()
			break
		}
		b, ok := q.read(c.size)
		if !ok { // since head
			q.lose()
			q.schedule()
			break
		}
		w, err := parseWQE(b, q.service == serviceUD)
		if err != nil {
			q.device().fabric.violation("QP %#x: %v", q.qpn, err)
			q.fail(&c, localOperation)
			q.done += blocks(c.size)
			break
		}
		if !q.trying && !q.unchanged(q.done, b) {
			q.device().fabric.violation("QP %#x: WQE %d was changed after its doorbell", q.qpn, q.done)
		}
		if !q.trying {
			if trace := q.device().fabric.WQE; trace != nil {
				trace(b)
			}
			if q.changedKey && !w.fenced {
				q.device().fabric.violation("QP %#x: WQE %d is not fenced, behind a UMR", q.qpn, q.done)
			}
			q.changedKey = w.op == opUMR
			q.trying, q.unanswered, q.retries, q.rnr = true, false, int(q.attr.retry), int(q.attr.rnrRetry)
			if w.op.answered() {
				q.countBurst(&w)
			}
		}
		switch q.perform(&w, now) {
		case again:
			q.schedule()
			return work
		case ended:
			q.done += blocks(w.size)
			q.trying = false
			return true
		}
		q.done += blocks(w.size)
		q.trying = false
		work = true
		q.device().fabric.stats.Requests++
	}
	return work
}

// countBurst counts the READs and atomics that a device may have sent before the first one was answered, with this one:
// those that were posted when the one before was executed. A fence waits for all.
func (q *queuePair) countBurst(w *workRequest) {
	if w.fenced || int16(q.known-q.done) <= 0 {
		q.burst = 0
	}
	q.burst = min(q.burst+1, depth(q.attr.maxRead))
	q.known = q.posted
}

// perform executes one WQE.
func (q *queuePair) perform(w *workRequest, now time.Time) outcome {
	if w.op == opNop {
		q.complete(w.control, 0, 0)
		return done
	}
	switch {
	case w.op == opUMR && q.service == serviceUD, w.op == opSendInv && q.service != serviceRC:
		return q.failed(w, localOperation)
	case w.op == opUMR:
		if cause := q.changeKey(w); cause != 0 {
			return q.failed(w, cause)
		}
		q.complete(w.control, 0, 0)
		return done
	}
	if q.service == serviceUD && !w.op.receives() || q.service == serviceUC && w.op.answered() || q.service == serviceUD && w.op == opWriteImm {
		return q.failed(w, localOperation)
	}
	if w.op.atomic() && q.device().config.NoAtomics {
		return q.failed(w, localOperation) // a guess: the kernel only has the QP refuse those of its peer
	}
	longest := uint64(maxMessage)
	if q.service == serviceUD {
		longest = mtu
	}
	if w.length > longest || w.op.atomic() && w.length != 8 {
		return q.failed(w, localLength)
	}
	access := uint32(0)
	if w.op.answered() {
		access = accessLocalWrite
	}
	local, ok := q.device().resolveList(q.pd, w.list, access, w.length)
	if !ok {
		return q.failed(w, localProtection)
	}
	if q.service == serviceUD {
		q.datagram(w, local)
		q.complete(w.control, 0, 0)
		return done
	}
	p := q.peer()
	if p == nil {
		if q.service == serviceRC {
			return q.retry(w, now)
		}
		q.complete(w.control, 0, 0)
		return done
	}
	cause, missing := p.respond(w, local, q.burst)
	switch {
	case q.service == serviceUC: // nobody answers
	case missing:
		return q.notReady(w, p, now)
	case cause != 0:
		return q.failed(w, cause)
	}
	bytes := uint32(0)
	if w.op.answered() {
		bytes = uint32(w.length)
	}
	q.complete(w.control, 0, bytes)
	return done
}

func (q *queuePair) failed(w *workRequest, cause syndrome) outcome {
	if q.service == serviceRC {
		q.fail(&w.control, cause)
		return ended
	}
	q.complete(w.control, cause, 0)
	q.state = stateSQE
	q.schedule()
	return ended
}

// retry waits for an answer that does not come, as often as the QP may.
func (q *queuePair) retry(w *workRequest, now time.Time) outcome {
	if q.attr.timeout == 0 {
		q.wait = now.Add(time.Millisecond) // for ever
		return again
	}
	switch {
	case !q.unanswered:
		q.unanswered = true
	case q.retries == 0:
		return q.failed(w, retriesExceeded)
	default:
		q.retries--
	}
	q.wait = now.Add(time.Duration(4096) << (q.attr.timeout & 31))
	return again
}

// notReady waits as long as the peer says, if the QP may.
func (q *queuePair) notReady(w *workRequest, p *queuePair, now time.Time) outcome {
	const without = 7 // end
	if q.rnr == 0 {
		return q.failed(w, rnrRetriesExceeded)
	}
	if q.rnr != without {
		q.rnr--
	}
	q.unanswered = false // it was answered by this
	q.wait = now.Add(rnrTimer(p.attr.minRNR))
	return again
}

// rnrTimer is the time of a code (IBA 9.7.5.2.8).
func rnrTimer(code byte) time.Duration {
	units := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
		4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
	return time.Duration(units[code&31]) * 10 * time.Microsecond
}

// respond is the responder's part: it says with which syndrome the requester's WQE fails, or
// that a receive WQE is missing. It then has done nothing. A READ or atomic is one of a burst that may be here at once.
func (q *queuePair) respond(w *workRequest, local []piece, burst uint32) (cause syndrome, missing bool) {
	if w.op.answered() && burst > depth(q.attr.maxDest) { // IBA 9.7.5.2.4: more than it has room for
		q.event(eventQPRequest)
		q.toError()
		return remoteInvalid, false
	}
	var remote []piece
	if w.op.remote() && w.length > 0 {
		p, cause := q.remote(w)
		if cause != 0 {
			return cause, false
		}
		remote = []piece{p}
	}
	var list []scatter
	var index uint16
	if w.op.receives() {
		var ok bool
		if list, index, ok = q.recv.next(); !ok {
			return 0, true
		}
		if w.op != opWriteImm {
			remote, cause = q.buffers(list, w.length)
		}
		if cause != 0 {
			q.recv.consume()
			q.received(index, completion{op: cqeResponseError, cause: cause})
			q.toError()
			if cause == localLength {
				return remoteInvalid, false
			}
			return remoteOperation, false
		}
	}
	if err := q.move(w, local, remote); err != nil {
		// Registered memory that is gone: the device would have pinned it.
		q.device().fabric.logf("QP %#x: %v", q.qpn, err)
		q.toError()
		return remoteOperation, false
	}
	if w.op == opSendInv && !q.takeAway(be.Uint32(w.imm[:])) {
		q.recv.consume()
		q.received(index, completion{op: cqeResponseError, cause: localAccess})
		q.event(eventQPAccess)
		q.toError()
		return remoteAccess, false
	}
	if w.op.receives() {
		q.recv.consume()
		q.received(index, q.receipt(w))
	}
	return 0, false
}

// buffers returns where a message goes.
func (q *queuePair) buffers(list []scatter, length uint64) ([]piece, syndrome) {
	room := uint64(0)
	for _, s := range list {
		room += uint64(s.size)
	}
	if room < length {
		return nil, localLength
	}
	pieces, ok := q.device().resolveList(q.recv.pd, list, accessLocalWrite, length)
	if !ok {
		return nil, localProtection
	}
	return pieces, 0
}

// remote checks what a request wants to access here.
func (q *queuePair) remote(w *workRequest) (piece, syndrome) {
	access := uint32(accessRemoteWrite)
	switch {
	case w.op == opRead:
		access = accessRemoteRead
	case w.op.atomic():
		access = accessRemoteAtomic
	}
	p, ok := piece{}, false
	allowed := q.attr.allowed()&access != 0
	if allowed {
		p, ok = q.resolveRemote(w.rkey, w.addr, w.length, access)
	}
	switch {
	case !allowed && q.service != serviceUC:
		// What the QP does not take at all is an invalid request (IBA 9.7.5.2.4).
		q.event(eventQPRequest)
		q.toError()
		return p, remoteInvalid
	case !ok && q.service == serviceUC:
		return p, remoteAccess // dropped
	case !ok:
		q.event(eventQPAccess)
		q.toError()
		return p, remoteAccess
	case w.op.atomic() && w.addr%8 != 0:
		q.event(eventQPRequest)
		q.toError()
		return p, remoteInvalid
	}
	return p, 0
}

// move carries the data.
func (q *queuePair) move(w *workRequest, local, remote []piece) error {
	buffer := q.device().fabric.buffer
	switch {
	case w.length == 0:
		return nil
	case w.op == opRead:
		return transfer(local, remote, buffer)
	case w.op.atomic():
		var word [8]byte
		at := remote[0]
		if err := at.memory.Read(at.addr, word[:]); err != nil {
			return err
		}
		before := le.Uint64(word[:])
		after := before + w.swapAdd
		if w.op == opCompare {
			after = before
			if before == w.equal {
				after = w.swapAdd
			}
		}
		if err := store(local, word[:]); err != nil {
			return err
		}
		le.PutUint64(word[:], after)
		return at.memory.Write(at.addr, word[:])
	case w.inline != nil:
		return store(remote, w.inline)
	}
	return transfer(remote, local, buffer)
}

// receipt is the CQE of the message's receiver.
func (q *queuePair) receipt(w *workRequest) completion {
	e := completion{op: cqeSend, bytes: uint32(w.length), solicited: w.solicited}
	switch w.op {
	case opSendImm:
		e.op, e.imm = cqeSendImm, w.imm
	case opSendInv:
		e.op, e.imm = cqeSendInv, w.imm
	case opWriteImm:
		e.op, e.imm = cqeWriteImm, w.imm
	}
	return e
}

// datagram sends a message of UD.
func (q *queuePair) datagram(w *workRequest, local []piece) {
	if w.to.qpn == multicastQPN {
		if q.device().config.Link == Ethernet {
			w.to.global = true
		}
		q.spread(w, local)
		return
	}
	d := q.device().find(w.to.address)
	if d == nil || d.down || q.device().down || q.device().config.Link == Ethernet && w.to.mac != d.mac {
		return
	}
	if q.device().config.Link == Ethernet {
		w.to.global = true // there it always is, and the bit is not set
	}
	q.deliver(d.qps[w.to.qpn], w, local)
}

// deliver gives a datagram to a QP, if there is one that takes it.
func (q *queuePair) deliver(p *queuePair, w *workRequest, local []piece) {
	const (
		grh     = 40
		usesOwn = 1 << 31 // of a Q_Key: that of the QP is taken
	)
	qkey := w.to.qkey
	if qkey&usesOwn != 0 {
		qkey = q.attr.qkey
	}
	if p == nil || p.service != serviceUD || p.state < stateRTR || p.state == stateError || p.attr.qkey != qkey {
		return
	}
	list, index, ok := p.recv.next()
	if !ok {
		return
	}
	p.recv.consume()
	pieces, cause := p.buffers(list, grh+w.length)
	if cause != 0 {
		p.received(index, completion{op: cqeResponseError, cause: cause})
		p.toError()
		return
	}
	if w.to.global {
		_ = store(pieces, q.device().header(w))
	}
	for left := uint64(grh); left > 0; {
		n := min(left, pieces[0].size)
		pieces = advance(pieces, n)
		left -= n
		if len(pieces) == 0 {
			break
		}
	}
	_ = p.move(w, local, pieces)
	e := p.receipt(w)
	e.bytes += grh
	e.slid, e.source = q.device().lid, q.qpn|q.device().packet(w)<<24
	p.received(index, e)
}

// packet is what the CQE of a datagram says of its packet, beside the QP that it is from: whether it has a GRH, and the
// service level, or on Ethernet, where packets have none, the kind of their header (cq.c, handle_responder; include/linux/mlx5/device.h,
// MLX5_CQE_ROCE_L3_HEADER_TYPE_*).
func (d *Device) packet(w *workRequest) uint32 {
	const global, ipv6, ipv4 = 1 << 4, 1, 2
	if d.config.Link == InfiniBand {
		if w.to.global {
			return global | uint32(w.to.sl)
		}
		return uint32(w.to.sl)
	}
	switch source := d.source(w); {
	case source.kind != gidRoCE2:
		return global
	case source.ipv4():
		return global | ipv4
	}
	return global | ipv6
}

// source is the row of the GID table that a datagram names.
func (d *Device) source(w *workRequest) gidEntry {
	if int(w.to.source) < len(d.gids) {
		return d.gids[w.to.source]
	}
	return d.gids[0]
}

// header is what a datagram has before its data: the GRH, or of RoCE v2 over IPv4 the header
// of that in the last 20 bytes (IBA annex A17.4.5.2).
func (d *Device) header(w *workRequest) []byte {
	h := make([]byte, 40)
	source := d.source(w)
	if source.kind == gidRoCE2 && source.ipv4() {
		const udp, headers = 17, 20 + 8 + 12 + 8 + 4 // IP, UDP, BTH, DETH, CRC
		ip := h[20:]
		ip[0], ip[8], ip[9] = 4<<4|5, 64, udp
		be.PutUint16(ip[2:], uint16(w.length)+headers)
		copy(ip[12:], source.gid[12:])
		copy(ip[16:], w.to.gid[12:])
		return h
	}
	h[0] = 6 << 4
	be.PutUint16(h[4:], uint16(w.length))
	h[6], h[7] = 0x1b, 64 // IBA transport, hop limit
	copy(h[8:], source.gid[:])
	copy(h[24:], w.to.gid[:])
	return h
}
