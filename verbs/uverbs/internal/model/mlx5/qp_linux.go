//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"
)

type service byte

// The types of QPs (IB_UVERBS_QPT_*).
const (
	serviceRC service = 2
	serviceUC service = 3
	serviceUD service = 4
)

// States of a QP.
const (
	stateReset = iota
	stateInit
	stateRTR
	stateRTS
	stateSQD
	stateSQE
	stateError
)

// Asynchronous events (IB_EVENT_*).
const (
	eventCQError     = 0
	eventQPFatal     = 1
	eventQPRequest   = 2
	eventQPAccess    = 3
	eventSQDrained   = 5
	eventDeviceFatal = 8
	eventPortActive  = 9
	eventPortError   = 10
	eventLastWQE     = 16
	eventSRQLimit    = 15
)

// A receiveQueue is a ring of receive WQEs, a QP's own, or the list of an SRQ.
type receiveQueue struct {
	context       *ucontext
	pd            *protectionDomain
	buffer        uint64
	record        uint64 // the word with the number of WQEs posted, modulo 2^16
	size          uint32 // entries, a power of two
	shift         uint32
	consumed      uint16
	returned      uint16 // consumed, and the CQE is in the program's memory
	head          uint16 // SRQ: index of the next WQE
	shared        bool
	overfull      bool // and that was said
	handle        uint32
	srqn          uint32
	user          uint64
	users         int
	limit         uint32
	events        uint32
	maxWR, maxSGE uint32
}

// next returns the WQE that is first, without consuming it, and its index. It is false if
// there is none.
func (r *receiveQueue) next() (list []scatter, index uint16, ok bool) {
	var record [4]byte
	if r.size == 0 || r.context.memory.Read(r.record, record[:]) != nil ||
		uint16(be.Uint32(record[:])) == r.consumed {
		return nil, 0, false
	}
	if posted := uint16(be.Uint32(record[:])); uint32(posted-r.returned) > r.size && !r.overfull {
		r.overfull = true
		r.context.device.fabric.violation("receive queue at %#x: %d WQEs are posted to a queue of %d", r.buffer, posted-r.returned, r.size)
	}
	index = r.consumed
	if r.shared {
		index = r.head
	}
	wqe := make([]byte, 1<<r.shift)
	if r.context.memory.Read(r.at(index), wqe) != nil {
		return nil, 0, false
	}
	if r.shared {
		wqe = wqe[segmentSize:]
	}
	return parseScatter(wqe), index, true
}

func (r *receiveQueue) at(index uint16) uint64 {
	return r.buffer + uint64(uint32(index)&(r.size-1))<<r.shift
}

// consume takes the first WQE.
func (r *receiveQueue) consume() {
	r.consumed++
	if !r.shared {
		return
	}
	var next [4]byte // struct mlx5_wqe_srq_next_seg
	_ = r.context.memory.Read(r.at(r.head), next[:])
	r.head = be.Uint16(next[2:])
	if r.limit == 0 {
		return
	}
	var record [4]byte
	if r.context.memory.Read(r.record, record[:]) == nil && uint32(uint16(be.Uint32(record[:]))-r.consumed) < r.limit {
		r.limit = 0
		r.events++
		r.context.event(eventSRQLimit, r.user)
	}
}

// A queuePair has its send queue and its doorbell record in the program's memory.
type queuePair struct {
	context     *ucontext
	pd          *protectionDomain
	handle, qpn uint32
	uar         *uar
	bfreg       int // its register of static UARs, or noBfreg
	user        uint64
	uidx        uint32
	service     service
	signalAll   bool
	send        uint64
	sendSize    uint32 // basic blocks
	record      uint64 // of the receive queue; the send queue's is 4 bytes behind it
	recv        *receiveQueue
	sendCQ      *completionQueue
	recvCQ      *completionQueue
	caps        [5]uint32 // as the program asked for them
	events      uint32
	groups      []multicastGroup

	state  int
	attr   attributes
	posted uint16 // of the send queue, in basic blocks, as last read
	done   uint16 // executed
	// completed is where the WQE ends that the last CQE in the program's memory is of: the driver
	// may use what is before it again.
	completed uint16
	snapshot  map[uint16][basicBlock]byte // see Hostile: blocks as they were at their doorbell

	scheduled bool
	wait      time.Time // not before
	// Of the WQE at done, if trying:
	trying     bool
	unanswered bool // it has been sent, and its answer is due at wait
	retries    int  // left
	rnr        int
	// burst is how many READs and atomics may be under way at once, the one at done among them, and known is what was posted
	// when the last one was executed.
	burst uint32
	known uint16

	changedKey bool // the WQE before the one at done is a UMR, for the end of which that has to wait
}

// attributes are those of MODIFY_QP that the model needs, and what QUERY_QP says.
type attributes struct {
	access    uint32
	qkey      uint32
	dest      uint32
	path      [32]byte // struct ib_uverbs_qp_dest
	mtu       byte
	timeout   byte
	retry     byte
	rnrRetry  byte
	minRNR    byte
	rqPSN     uint32
	sqPSN     uint32
	maxRead   byte
	maxDest   byte
	port      byte
	pkeyIndex uint16
}

// allowed is what peers may do: without room for READs and atomics neither of them (qp.c, set_qpc_atomic_flags).
func (a *attributes) allowed() uint32 {
	if a.maxDest == 0 {
		return a.access & accessRemoteWrite
	}
	return a.access
}

// depth is how many READs and atomics a QP has under way at once, or takes, for its attribute: the device has powers of
// two, and at least one (qp.c, __mlx5_ib_modify_qp: log_sra_max and log_rra_max).
func depth(attribute byte) uint32 { return roundUp(uint32(attribute)) }

// post takes a new index of the send queue from the doorbell record.
func (q *queuePair) post(posted uint16) {
	f := q.device().fabric
	if used := posted - q.completed; uint32(used) > q.sendSize {
		f.violation("QP %#x: %d basic blocks are in use of a send queue of %d: a slot was overwritten before its completion",
			q.qpn, used, q.sendSize)
	}
	if f.Hostile != nil && uint32(posted-q.posted) <= q.sendSize {
		if q.snapshot == nil {
			q.snapshot = map[uint16][basicBlock]byte{}
		}
		for at := q.posted; at != posted; at++ {
			if b, ok := q.readAt(at, basicBlock); ok {
				q.snapshot[at] = [basicBlock]byte(b)
			}
		}
	}
	q.posted = posted
	q.schedule()
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

func (q *queuePair) device() *Device { return q.context.device }

func (q *queuePair) event(kind uint32) {
	q.events++
	q.context.event(kind, q.user)
}

// peer returns the QP that the path leads to, or nil.
func (q *queuePair) peer() *queuePair {
	d := q.device().find(address{lid: le.Uint16(q.attr.path[20:]), global: q.attr.path[30] != 0,
		gid: [16]byte(q.attr.path[:16]), source: q.attr.path[24]})
	if d == nil || d.down || q.device().down {
		return nil
	}
	p := d.qps[q.attr.dest]
	if p == nil || p.service != q.service || p.attr.dest != q.qpn || p.state < stateRTR || p.state == stateError {
		return nil // packets for another, or in such a state, are dropped
	}
	return p
}

// fail ends a request with an error: the QP is in the error state, and what is left on its
// queues is flushed.
func (q *queuePair) fail(w *control, cause syndrome) {
	q.device().fabric.logf("QP %#x: WQE %d with opcode %#x fails with syndrome %#x", q.qpn, w.index, w.op, cause)
	q.complete(*w, cause, 0)
	q.toError()
}

func (q *queuePair) toError() {
	if q.state == stateError {
		return
	}
	q.state = stateError
	if q.recv.shared {
		q.event(eventLastWQE)
	}
	q.schedule()
}

// complete writes the CQE of a send WQE; bytes are those that came from the other side.
func (q *queuePair) complete(w control, cause syndrome, bytes uint32) {
	e := completion{op: cqeRequest, qpn: q.qpn, uidx: q.uidx, index: w.index, request: w.op, bytes: bytes}
	e.written = func() { q.completed = w.index + blocks(w.size) }
	if cause != 0 {
		e.op, e.cause = cqeRequestError, cause
	} else if !w.signaled && !q.signalAll {
		return
	}
	q.sendCQ.put(e)
}

// received writes the CQE of a receive WQE.
func (q *queuePair) received(index uint16, e completion) {
	e.qpn, e.uidx, e.index = q.qpn, q.uidx, index
	if q.uidx == defaultUidx { // CQEs of version 0 name an SRQ there (include/linux/mlx5/device.h, struct mlx5_cqe64)
		e.uidx = q.recv.srqn
	}
	e.written = func() { q.recv.returned++ }
	q.recvCQ.put(e)
}

// flush completes all that is posted to a QP in the error state.
func (q *queuePair) flush() bool {
	work := false
	for q.done != q.posted {
		w, ok := q.head()
		if !ok {
			break
		}
		q.complete(w, flushed, 0)
		q.done += blocks(w.size)
		work = true
	}
	for q.state == stateError && !q.recv.shared && !q.recvCQ.dead {
		_, index, ok := q.recv.next()
		if !ok {
			break
		}
		q.recv.consume()
		q.received(index, completion{op: cqeResponseError, cause: flushed})
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
		if q.state == stateError && !q.recv.shared {
			q.schedule()
		}
	}
}

func (q *queuePair) releaseAll() {
	q.sendCQ.release()
	q.recvCQ.release()
}

// reset makes a QP new.
func (q *queuePair) reset() {
	q.releaseAll()
	q.posted, q.done, q.completed, q.trying, q.changedKey, q.wait, q.known, q.burst = 0, 0, 0, false, false, time.Time{}, 0, 0
	clear(q.snapshot)
	q.attr = attributes{}
	if !q.recv.shared {
		q.recv.consumed, q.recv.returned = 0, 0
	}
}

// modify carries out a MODIFY_QP: struct ib_uverbs_modify_qp.
func (q *queuePair) modify(r []byte) unix.Errno {
	mask := le.Uint32(r[68:])
	to := q.state
	if mask&maskState != 0 {
		to = int(r[96])
	}
	if mask&maskCurrent != 0 && int(r[97]) != q.state {
		return unix.EINVAL // the firmware: mlx5_ib_modify_qp takes the program's word
	}
	if mask&maskAlt != 0 && q.device().config.Link == Ethernet {
		return unix.EINVAL // core/verbs.c, _ib_modify_qp
	}
	if mask&(maskAV|maskPort) == maskAV && (mask&maskState == 0 || to != stateRTR) {
		mask |= maskPort // core/uverbs_cmd.c, modify_qp
		r[104] = r[31]
	}
	if !transition(q.service, q.state, to, mask) {
		return unix.EINVAL // core/verbs.c, ib_modify_qp_is_ok, from mlx5_ib_modify_qp
	}
	if mask&maskPort != 0 && r[104] != 1 {
		return unix.EINVAL // mlx5_ib_modify_qp: port out of range
	}
	if mask&maskPKey != 0 && le.Uint16(r[92:]) != 0 {
		return unix.EINVAL // the same: only P_Key 0 is there
	}
	if mask&maskMaxRead != 0 && r[101] > maxReads || mask&maskMaxDest != 0 && r[102] > maxReads {
		return unix.EINVAL // mlx5_ib_modify_qp
	}
	if mask&maskAV != 0 {
		if r[31] != 1 {
			return unix.EINVAL // uverbs_cmd.c, modify_qp
		}
		if errno := q.device().checkPath(r[30] != 0, r[24]); errno != 0 {
			return errno
		}
	}
	if to == stateReset {
		q.state = to
		q.reset()
		return 0
	}
	a := &q.attr
	next := *a
	if mask&maskAccess != 0 {
		next.access = le.Uint32(r[88:])
	}
	if mask&maskMaxDest != 0 {
		next.maxDest = r[102]
	}
	if q.device().config.NoAtomics && mask&(maskAccess|maskMaxDest) != 0 && next.allowed()&accessRemoteAtomic != 0 {
		return unix.EOPNOTSUPP // qp.c, set_qpc_atomic_flags
	}
	a.access = next.access
	if mask&maskAV != 0 {
		copy(a.path[:], r[:32])
	}
	if mask&maskQKey != 0 {
		a.qkey = le.Uint32(r[72:])
	}
	if mask&maskRQPSN != 0 {
		a.rqPSN = le.Uint32(r[76:]) & 0xffffff
	}
	if mask&maskSQPSN != 0 {
		a.sqPSN = le.Uint32(r[80:]) & 0xffffff
	}
	if mask&maskDest != 0 {
		a.dest = le.Uint32(r[84:]) & 0xffffff
	}
	for bit, field := range map[uint32]struct {
		to *byte
		at int
	}{maskMTU: {&a.mtu, 98}, maskMaxRead: {&a.maxRead, 101}, maskMaxDest: {&a.maxDest, 102}, maskMinRNR: {&a.minRNR, 103},
		maskPort: {&a.port, 104}, maskTimeout: {&a.timeout, 105}, maskRetry: {&a.retry, 106}, maskRNRRetry: {&a.rnrRetry, 107}} {
		if mask&bit != 0 {
			*field.to = r[field.at]
		}
	}
	if to == stateError {
		q.toError()
		return 0
	}
	q.state = to
	if to == stateSQD && mask&maskSQD != 0 && r[100] != 0 {
		q.event(eventSQDrained) // nothing that was begun is under way
	}
	q.schedule()
	return 0
}

// Bits of attr_mask (enum ib_qp_attr_mask).
const (
	maskState    = 1 << 0
	maskCurrent  = 1 << 1
	maskSQD      = 1 << 2
	maskAccess   = 1 << 3
	maskPKey     = 1 << 4
	maskPort     = 1 << 5
	maskQKey     = 1 << 6
	maskAV       = 1 << 7
	maskMTU      = 1 << 8
	maskTimeout  = 1 << 9
	maskRetry    = 1 << 10
	maskRNRRetry = 1 << 11
	maskRQPSN    = 1 << 12
	maskMaxRead  = 1 << 13
	maskAlt      = 1 << 14
	maskMinRNR   = 1 << 15
	maskSQPSN    = 1 << 16
	maskMaxDest  = 1 << 17
	maskMigrate  = 1 << 18
	maskDest     = 1 << 20
)

// A change of state requires some attributes and allows others, as ib_modify_qp_is_ok
// has it (drivers/infiniband/core/verbs.c, qp_state_table).
type change struct{ required, optional uint32 }

var changes = map[service]map[[2]int]change{
	serviceRC: {
		{stateReset, stateInit}: {maskPKey | maskPort | maskAccess, 0},
		{stateInit, stateInit}:  {0, maskPKey | maskPort | maskAccess},
		{stateInit, stateRTR}: {maskAV | maskMTU | maskDest | maskRQPSN | maskMaxDest | maskMinRNR,
			maskAlt | maskAccess | maskPKey},
		{stateRTR, stateRTS}: {maskTimeout | maskRetry | maskRNRRetry | maskSQPSN | maskMaxRead,
			maskCurrent | maskAlt | maskAccess | maskMinRNR | maskMigrate},
		{stateRTS, stateRTS}: {0, maskCurrent | maskAccess | maskMinRNR | maskAlt | maskMigrate},
		{stateRTS, stateSQD}: {0, maskSQD},
		{stateSQD, stateRTS}: {0, maskCurrent | maskAlt | maskAccess | maskMinRNR | maskMigrate},
		{stateSQD, stateSQD}: {0, maskPort | maskAV | maskTimeout | maskRetry | maskRNRRetry | maskMaxRead | maskMaxDest |
			maskAlt | maskAccess | maskPKey | maskMinRNR | maskMigrate},
	},
	serviceUC: {
		{stateReset, stateInit}: {maskPKey | maskPort | maskAccess, 0},
		{stateInit, stateInit}:  {0, maskPKey | maskPort | maskAccess},
		{stateInit, stateRTR}:   {maskAV | maskMTU | maskDest | maskRQPSN, maskAlt | maskAccess | maskPKey},
		{stateRTR, stateRTS}:    {maskSQPSN, maskCurrent | maskAlt | maskAccess | maskMigrate},
		{stateRTS, stateRTS}:    {0, maskCurrent | maskAccess | maskAlt | maskMigrate},
		{stateRTS, stateSQD}:    {0, maskSQD},
		{stateSQD, stateRTS}:    {0, maskCurrent | maskAlt | maskAccess | maskMigrate},
		{stateSQD, stateSQD}:    {0, maskAV | maskAlt | maskAccess | maskPKey | maskMigrate},
		{stateSQE, stateRTS}:    {0, maskCurrent | maskAccess},
	},
	serviceUD: {
		{stateReset, stateInit}: {maskPKey | maskPort | maskQKey, 0},
		{stateInit, stateInit}:  {0, maskPKey | maskPort | maskQKey},
		{stateInit, stateRTR}:   {0, maskPKey | maskQKey},
		{stateRTR, stateRTS}:    {maskSQPSN, maskCurrent | maskQKey},
		{stateRTS, stateRTS}:    {0, maskCurrent | maskQKey},
		{stateRTS, stateSQD}:    {0, maskSQD},
		{stateSQD, stateRTS}:    {0, maskCurrent | maskQKey},
		{stateSQD, stateSQD}:    {0, maskPKey | maskQKey},
		{stateSQE, stateRTS}:    {0, maskCurrent | maskQKey},
	},
}

// transition says whether a change of state with these attributes is one.
func transition(s service, from, to int, mask uint32) bool {
	if from > stateError || to > stateError {
		return false
	}
	if mask&maskCurrent != 0 && from != stateRTR && from != stateRTS && from != stateSQD && from != stateSQE {
		return false
	}
	if to == stateReset || to == stateError && from != stateReset {
		return mask&^maskState == 0
	}
	c, ok := changes[s][[2]int{from, to}]
	given := mask &^ maskState
	return ok && given&c.required == c.required && given&^(c.required|c.optional) == 0
}
