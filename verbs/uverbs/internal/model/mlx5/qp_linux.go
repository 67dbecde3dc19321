//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A queuePair has its send queue and its doorbell record in the program's memory.
type queuePair struct {
	fabric.QP
	context   *ucontext
	handle    uint32
	uar       *uar
	bfreg     int // its register of static UARs, or noBfreg
	user      uint64
	uidx      uint32
	signalAll bool
	send      uint64
	sendSize  uint32 // basic blocks
	record    uint64 // of the receive queue; the send queue's is 4 bytes behind it
	recv      *receiveQueue
	sendCQ    *completionQueue
	recvCQ    *completionQueue
	caps      [5]uint32 // as the program asked for them
	events    uint32
	// completed is where the WQE ends that the last CQE in the program's memory is of: the
	// driver may use what is before it again.
	completed  uint16
	snapshot   map[uint16][basicBlock]byte // see Hostile: blocks as they were at their doorbell
	op         opcode                      // of the WQE that head has returned
	wqe        []byte                      // that Next has returned
	changedKey bool                        // the WQE before the next one is a UMR, for the end of which that has to wait
}

func (c *ucontext) createQP(r *frame.Request) unix.Errno {
	const leastRequest, knownRequest = 48, 52 // of struct mlx5_ib_create_qp: without ece_options, and without reserved
	b, m := r.Core, r.Driver
	if fabric.Service(b[53]) == fabric.XRCTarget {
		return c.createTarget(r)
	}
	if len(m) < leastRequest {
		return unix.EINVAL // qp.c, process_udata_size
	}
	if len(m) > knownRequest && !zero(m[knownRequest:]) {
		return unix.EINVAL // qp.c, check_ucmd_data
	}
	// Scatter to CQE is allowed, and never done.
	const (
		registerFlag = 1 << 3  // BFREG_INDEX
		pageFlag     = 1 << 10 // UAR_PAGE_INDEX
		knownFlags   = 1<<1 | registerFlag | 1<<8 | pageFlag
	)
	flags := le.Uint32(m[28:])
	q := &queuePair{QP: fabric.QP{Port: c.device.Port, Service: fabric.Service(b[53])}, context: c, user: le.Uint64(b[8:]), signalAll: b[52] != 0,
		record: le.Uint64(m[8:]), sendSize: le.Uint32(m[16:]), uidx: le.Uint32(m[32:]), bfreg: noBfreg}
	for i := range q.caps {
		q.caps[i] = le.Uint32(b[32+4*i:])
	}
	own := &receiveQueue{context: c, buffer: le.Uint64(m), record: q.record, size: le.Uint32(m[20:]), shift: le.Uint32(m[24:])}
	q.recv = own
	var found [4]bool
	q.Queues = q
	initiator := q.Service == fabric.XRCInitiator
	if initiator { // core/uverbs_cmd.c, create_qp
		q.caps[1], q.caps[3] = 0, 0
	}
	q.PD, found[0] = lookup[*fabric.PD](c, le.Uint32(b[16:]))
	q.sendCQ, found[1] = lookup[*completionQueue](c, le.Uint32(b[20:]))
	q.recvCQ, found[2] = lookup[*completionQueue](c, le.Uint32(b[24:]))
	found[3] = true
	if initiator {
		q.recvCQ, found[2] = q.sendCQ, true
	} else if b[54] != 0 {
		q.recv, found[3] = lookup[*receiveQueue](c, le.Uint32(b[28:]))
	}
	own.pd = q.PD
	receives := !q.recv.shared && q.caps[1] != 0 // qp.c, qp_has_rq
	switch {
	case q.Service != fabric.RC && q.Service != fabric.UC && q.Service != fabric.UD && !initiator:
		return unix.EOPNOTSUPP // the model has no others (uverbs_cmd.c, create_qp, knows some more)
	case found != [4]bool{true, true, true, true} || q.recv.domain != nil:
		return unix.EINVAL // uverbs_cmd.c, create_qp
	case q.Service == fabric.UC && q.recv.shared:
		return unix.EINVAL // a guess: the firmware refuses it, and none of the kernel's checks does
	case flags&^knownFlags != 0:
		return unix.EINVAL // qp.c, process_vendor_flags
	case flags&(registerFlag|pageFlag) == registerFlag|pageFlag:
		return unix.EINVAL // qp.c, _create_user_qp
	case !c.validIndex(q.uidx):
		return unix.EINVAL // mlx5_ib.h, get_qp_user_index
	case q.caps[1] > maxWR:
		return unix.EINVAL // qp.c, set_rq_size
	case receives && own.shift > 32:
		return unix.EINVAL // the same
	case !receives && (own.size != 0 || own.shift != 0):
		return unix.EINVAL // qp.c, create_user_qp
	case q.sendSize != 0 && !powerOfTwo(q.sendSize) || q.sendSize > maxWR:
		return unix.EINVAL // qp.c, set_user_buf_size
	case receives && (!powerOfTwo(own.size) || own.size > maxWR || own.shift < 4 || own.shift > 9):
		return unix.EINVAL // the firmware
	case receives && own.size<<own.shift < basicBlock:
		return unix.EINVAL // a guess: the firmware. The send queue, behind it, begins at a basic block
	case q.sendCQ.realTime || q.recvCQ.realTime:
		return unix.EOPNOTSUPP // qp.c, get_qp_ts_format
	}
	bytes := uint64(q.sendSize) * basicBlock
	q.send = own.buffer
	if receives {
		bytes += uint64(own.size) << own.shift
		q.send += uint64(own.size) << own.shift
	}
	if bytes != 0 && own.buffer == 0 {
		return unix.EINVAL // the firmware: the kernel pins nothing then (qp.c, _create_user_qp)
	}
	if bytes != 0 && !c.readable(own.buffer, bytes) || !c.readable(q.record, 8) {
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	if misplaced(own.buffer, offsetUnit, q.record) {
		return unix.EINVAL // qp.c, _create_user_qp
	}
	switch {
	case flags&pageFlag != 0:
		if q.uar = c.uarOfPage(le.Uint32(m[36:])); q.uar == nil {
			return unix.EINVAL // the firmware: it is another's
		}
	case flags&registerFlag != 0:
		// It is one of a dynamic page in static contexts (MLX5_IB_MMAP_ALLOC_WC),
		// and the model has none.
		return unix.EINVAL // qp.c, bfregn_to_uar_index
	case c.static == nil:
		return unix.EINVAL // qp.c, alloc_bfreg
	}
	register := uint32(noRegister)
	if q.uar == nil {
		q.bfreg = c.bfregs.alloc()
		q.uar, register = c.static[q.bfreg/bfregsOfUser], adjusted(q.bfreg)
	}
	q.Number = c.device.Next()
	q.handle = c.add(q)
	q.PD.Users++
	q.sendCQ.users++
	q.recvCQ.users++
	if q.recv.shared {
		q.recv.users++
	}
	c.qps = append(c.qps, q)
	c.device.QPs[q.Number] = &q.QP
	core := append(words(q.handle, q.Number), b[32:52]...)
	return r.Answer(append(core, words(0)...), append(words(register), make([]byte, 36)...))
}

// attachMulticast is uverbs_cmd.c, ib_uverbs_attach_mcast.
func (c *ucontext) attachMulticast(r *frame.Request) unix.Errno {
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[16:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_attach_mcast
	}
	return q.Attach(r.Core)
}

// detachMulticast is uverbs_cmd.c, ib_uverbs_detach_mcast.
func (c *ucontext) detachMulticast(r *frame.Request) unix.Errno {
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[16:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_detach_mcast
	}
	return q.Detach(r.Core)
}

const (
	noBfreg    = -1
	noRegister = 1 << 31 // MLX5_IB_INVALID_BFREG
)

// validIndex says whether a program may name a QP so in CQEs. The default is for CQEs of version 0,
// which have no such indices (mlx5_ib.h, get_qp_user_index and verify_assign_uidx).
func (c *ucontext) validIndex(uidx uint32) bool {
	if c.cqeVersion == 0 {
		return uidx == defaultUidx
	}
	return uidx < defaultUidx
}

func (c *ucontext) modifyQP(r *frame.Request) unix.Errno {
	if o, ok := lookup[*openTarget](c, le.Uint32(r.Core[64:])); ok {
		return o.target.Modify(r.Core, c.checkAttributes)
	}
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[64:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, modify_qp
	}
	return q.Modify(r.Core, c.checkAttributes)
}

// checkAttributes is what mlx5_ib_modify_qp checks.
func (c *ucontext) checkAttributes(a *fabric.Attributes) unix.Errno {
	switch {
	case a.PKeyIndex != 0:
		return unix.EINVAL // qp.c, mlx5_ib_modify_qp: there is one P_Key
	case a.MaxRead > maxReads || a.MaxDest > maxReads:
		return unix.EINVAL // the same
	case c.device.NoAtomics && a.Allowed()&fabric.AccessRemoteAtomic != 0:
		return unix.EOPNOTSUPP // qp.c, set_qpc_atomic_flags
	}
	return 0
}

func (c *ucontext) queryQP(r *frame.Request) unix.Errno {
	if o, ok := lookup[*openTarget](c, le.Uint32(r.Core[8:])); ok {
		return r.Answer(o.target.Query(), nil)
	}
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_query_qp
	}
	b := q.Query()
	for i, v := range q.caps {
		le.PutUint32(b[64+4*i:], v)
	}
	if q.signalAll {
		b[122] = 1
	}
	return r.Answer(b, nil)
}

func (c *ucontext) destroyQP(r *frame.Request) unix.Errno {
	if o, ok := lookup[*openTarget](c, le.Uint32(r.Core[8:])); ok {
		o.close()
		return r.Answer(words(o.events), nil)
	}
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if c.inUse(q.Member()) {
		return unix.EBUSY // core/uverbs_std_types_qp.c, uverbs_free_qp
	}
	if !c.device.Removed { // or nothing is written any more
		if q.Service == fabric.UD {
			q.sendRest()
		}
		q.releaseAll()
	}
	if q.bfreg != noBfreg {
		c.bfregs.count[q.bfreg]-- // qp.c, mlx5_ib_free_bfreg
	}
	c.past[q.Number] = true
	q.PD.Users--
	q.sendCQ.users--
	q.recvCQ.users--
	if q.recv.shared {
		q.recv.users--
	}
	q.events -= c.unread(q.user, fabric.EventQPFatal, fabric.EventQPRequest, fabric.EventQPAccess, fabric.EventCommEst, fabric.EventSQDrained, fabric.EventLastWQE)
	delete(c.objects, q.handle)
	delete(c.device.QPs, q.Number)
	c.qps = without(c.qps, q)
	return r.Answer(words(q.events), nil)
}

// post takes a new index of the send queue from the doorbell record, of which it has 16 bits.
func (q *queuePair) post(record uint32) {
	f := q.Port.Fabric()
	posted := uint16(record)
	if record>>16 != 0 {
		f.Violation("QP %#x: the doorbell record of the send queue is %#x", q.Number, record)
	}
	if used := posted - q.completed; uint32(used) > q.sendSize {
		f.Violation("QP %#x: %d basic blocks are in use of a send queue of %d: a slot was overwritten before its completion",
			q.Number, used, q.sendSize)
	}
	if f.Hostile != nil && uint32(posted-q.Posted) <= q.sendSize {
		if q.snapshot == nil {
			q.snapshot = map[uint16][basicBlock]byte{}
		}
		for at := q.Posted; at != posted; at++ {
			if b, ok := q.readAt(at, basicBlock); ok {
				q.snapshot[at] = [basicBlock]byte(b)
			}
		}
	}
	q.Posted = posted
	q.Schedule()
}

// unchanged says whether a WQE is what it was when its doorbell was seen.
func (q *queuePair) unchanged(at uint16, wqe []byte) bool {
	for ; len(wqe) > 0; at++ {
		n := min(len(wqe), basicBlock)
		if was, ok := q.snapshot[at]; ok && !bytes.Equal(was[:n], wqe[:n]) {
			return false
		}
		delete(q.snapshot, at)
		wqe = wqe[n:]
	}
	return true
}

// Event tells the program of an asynchronous event of the QP.
func (q *queuePair) Event(kind uint32) {
	q.events++
	q.context.event(kind, q.user)
}

// Broken says that the CQ of requests is.
func (q *queuePair) Broken() bool { return q.sendCQ.dead }

// Receives returns the queue of receive WQEs.
func (q *queuePair) Receives() fabric.ReceiveQueue { return q.recv }

// Complete writes the CQE of a send WQE.
func (q *queuePair) Complete(w *fabric.Request, status fabric.Status, bytes uint32) {
	e := completion{op: cqeRequest, qpn: q.Number, uidx: q.uidx, index: w.Index, request: q.op, bytes: bytes}
	e.written = func() { q.completed = w.Index + w.Slots }
	if status != "" {
		e.op, e.cause = cqeRequestError, syndromes[status]
	} else if !w.Signaled { // signalAll is the driver's to write into each
		return
	}
	q.sendCQ.put(e)
}

// Received writes the CQE of a receive WQE.
func (q *queuePair) Received(index uint16, r fabric.Receipt) {
	e := completionOf(q.Number, index, &r)
	e.uidx = q.uidx
	if q.Service == fabric.UD && r.Status == "" {
		e.slid, e.source = r.LID, r.QPN|packet(&r)<<24
	}
	if q.uidx == defaultUidx { // CQEs of version 0 name an SRQ there (include/linux/mlx5/device.h, struct mlx5_cqe64)
		e.uidx = q.recv.srqn
	}
	e.written = func() { q.recv.returned++ }
	q.recvCQ.put(e)
}

// completionOf is what is the same for all receive WQEs.
func completionOf(qpn uint32, index uint16, r *fabric.Receipt) completion {
	e := completion{op: cqeOps[r.Op], qpn: qpn, index: index, bytes: r.Bytes, solicited: r.Solicited, cause: syndromes[r.Status]}
	if r.Op != fabric.Send {
		e.imm = r.Imm
	}
	if r.Status != "" {
		e.op = cqeResponseError
	}
	return e
}

// packet is what the CQE of a datagram says of its packet, beside the QP that it is from: whether
// it has a GRH, and the service level, or on Ethernet, where packets have none, the kind of their
// header (cq.c, handle_responder; include/linux/mlx5/device.h, MLX5_CQE_ROCE_L3_HEADER_TYPE_*).
func packet(r *fabric.Receipt) uint32 {
	const global, ipv6, ipv4 = 1 << 4, 1, 2
	switch {
	case r.GID.Kind == fabric.KindIB && !r.Global:
		return uint32(r.SL)
	case r.GID.Kind == fabric.KindIB:
		return global | uint32(r.SL)
	case r.GID.Kind != fabric.KindRoCE2:
		return global
	case r.GID.IPv4():
		return global | ipv4
	}
	return global | ipv6
}

// Flush completes all that is posted to a QP in the error state.
func (q *queuePair) Flush() bool {
	work := false
	for q.Done != q.Posted {
		w, ok := q.head()
		if !ok {
			break
		}
		q.Complete(&w.Request, fabric.Flushed, 0)
		q.Done += w.Slots
		work = true
	}
	for q.State == fabric.StateError && !q.recv.shared && !q.recvCQ.dead {
		_, index, ok := q.recv.Next()
		if !ok {
			break
		}
		q.recv.Consume()
		q.Received(index, fabric.Receipt{Status: fabric.Flushed})
		work = true
	}
	return work
}

// flushErrored looks at QPs in the error state: receive queues have no doorbell, and what is
// posted to them now is flushed too.
func (c *ucontext) flushErrored(now time.Time) {
	const interval = time.Millisecond
	if now.Sub(c.flushed) < interval {
		return
	}
	c.flushed = now
	for _, q := range c.qps {
		if q.State == fabric.StateError && !q.recv.shared {
			q.Schedule()
		}
	}
}

func (q *queuePair) releaseAll() {
	q.sendCQ.release()
	q.recvCQ.release()
}

// Reset makes the queues empty.
func (q *queuePair) Reset() {
	q.releaseAll()
	q.completed, q.changedKey = 0, false
	clear(q.snapshot)
	if !q.recv.shared {
		q.recv.consumed, q.recv.returned = 0, 0
	}
}
