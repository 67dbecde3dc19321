//go:build amd64 || arm64

package fabric

import (
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
)

// States of a QP.
const (
	StateReset = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateError
)

// Asynchronous events (IB_EVENT_*).
const (
	EventCQError     = 0
	EventQPFatal     = 1
	EventQPRequest   = 2
	EventQPAccess    = 3
	EventCommEst     = 4
	EventSQDrained   = 5
	EventDeviceFatal = 8
	EventPortActive  = 9
	EventPortError   = 10
	EventLastWQE     = 16
	EventSRQLimit    = 15
)

// Queues are those of a QP in the form of its device. They are called with the lock of the fabric.
type Queues interface {
	// Next returns the request that is first on the send queue. If there is none that can be
	// carried out, though one is posted, it is nil, and the QP is in the error state.
	Next() *Request
	// Begin is called before that request is tried for the first time.
	Begin(*Request)
	// Complete writes the completion of a request, if it is to have one. The bytes are those
	// that came from the other side.
	Complete(w *Request, status Status, bytes uint32)
	// Receives returns the queue of receive requests, nil if there is none.
	Receives() ReceiveQueue
	// Received writes the completion of the receive request with that index.
	Received(index uint16, r Receipt)
	// Flush completes all that is posted to a QP in the error state, and says whether
	// there was something.
	Flush() bool
	// Reset makes them empty.
	Reset()
	// Broken says that there can be no completions of requests any more.
	Broken() bool
	// Event tells the program of an asynchronous event of the QP.
	Event(kind uint32)
}

// A ReceiveQueue is that of a QP, or an SRQ.
type ReceiveQueue interface {
	// Next returns the request that is first, without consuming it, and its index. It is
	// false if there is none.
	Next() (list []Scatter, index uint16, ok bool)
	// Consume takes that request away.
	Consume()
	// PD is that of the memory to which the requests lead.
	PD() *PD
	// Shared says that it is an SRQ.
	Shared() bool
}

// A QP is a queue pair.
type QP struct {
	Port    *Port
	PD      *PD
	Domain  *Domain // of a target of XRC, whose PD is that of the SRQ in use
	Number  uint32
	Service Service
	Queues  Queues

	State  int
	told   int // what the kernel takes the state for: what was asked for, or seen, last
	Attr   Attributes
	Posted uint16    // of the send queue, as last read
	Done   uint16    // executed
	Wait   time.Time // nothing is done before

	groups      []multicastGroup
	scheduled   bool
	established bool // EventCommEst was told
	// Of the request at Done, if trying:
	trying     bool
	unanswered bool // it has been sent, and its answer is due at Wait
	retries    int  // left
	rnr        int
	// burst is how many READs and atomics may be under way at once, the one at Done among them,
	// and known is what was posted when the last one was executed.
	burst uint32
	known uint16
}

// Attributes are those of MODIFY_QP that the model needs, and what QUERY_QP says.
type Attributes struct {
	Access    uint32
	QKey      uint32
	Dest      uint32
	Path      [32]byte // struct ib_uverbs_qp_dest
	MTU       byte
	Timeout   byte
	Retry     byte
	RNRRetry  byte
	MinRNR    byte
	RQPSN     uint32
	SQPSN     uint32
	MaxRead   byte
	MaxDest   byte
	Port      byte
	PKeyIndex uint16
}

// Allowed is what peers may do: without room for READs and atomics neither of them (of mlx5 qp.c,
// set_qpc_atomic_flags).
func (a *Attributes) Allowed() uint32 {
	if a.MaxDest == 0 {
		return a.Access & AccessRemoteWrite
	}
	return a.Access
}

// depth is how many READs and atomics a QP has under way at once, or takes, for its
// attribute: devices have powers of two, and at least one (of mlx5 qp.c, __mlx5_ib_modify_qp:
// log_sra_max and log_rra_max).
func depth(attribute byte) uint32 { return 1 << bits.Len8(max(attribute, 1)-1) }

// Schedule puts the QP in the queue of those that Run looks at.
func (q *QP) Schedule() {
	if !q.scheduled {
		q.scheduled = true
		q.Port.fabric.queue = append(q.Port.fabric.queue, q)
	}
}

// peer returns the QP that the path leads to, if that takes q's packets and its answers come back.
// Otherwise it is nil.
func (q *QP) peer() *QP {
	port := q.destination()
	if port == nil || port.down || q.Port.down {
		return nil
	}
	p := port.QPs[q.Attr.Dest]
	if p == nil || p.Service != q.Service.other() || p.Attr.Dest != q.Number || p.State < StateRTR || p.State == StateError {
		return nil // packets for another, or in such a state, are dropped
	}
	if q.Service.reliable() && (p.Attr.RQPSN != q.Attr.SQPSN || p.destination() != q.Port) {
		return nil // UC begins anew with each message, whatever its number is (IBA 9.8.2.2), and is not answered
	}
	return p
}

// destination returns the port that the path leads to, or nil.
func (q *QP) destination() *Port {
	path := &q.Attr.Path
	return q.Port.find(Address{LID: le.Uint16(path[20:]), Global: path[30] != 0, GID: [16]byte(path[:16]), Source: path[24]})
}

// Fail ends a request with an error: the QP is in the error state, and what is left on its
// queues is flushed.
func (q *QP) Fail(w *Request, status Status) {
	q.Port.fabric.Logf("QP %#x: request %d, %s, fails: %s", q.Number, w.Index, w.Op, status)
	q.Queues.Complete(w, status, 0)
	q.toError()
}

func (q *QP) toError() {
	if q.State == StateError {
		return
	}
	q.State = StateError
	if r := q.Queues.Receives(); r != nil && r.Shared() {
		q.Queues.Event(EventLastWQE)
	}
	q.Schedule()
}

// reset makes a QP new.
func (q *QP) reset() {
	q.Posted, q.Done, q.trying, q.Wait, q.known, q.burst = 0, 0, false, time.Time{}, 0, 0
	q.established = false
	q.Attr = Attributes{}
	q.Queues.Reset()
}

// Modify carries out a MODIFY_QP: struct ib_uverbs_modify_qp. The checks that only the device makes
// are those of check, which is given what the attributes will be.
func (q *QP) Modify(r []byte, check func(*Attributes) unix.Errno) unix.Errno {
	mask := le.Uint32(r[68:])
	to := q.State
	if mask&MaskState != 0 {
		to = int(r[96])
	}
	if mask&maskCurrent != 0 && int(r[97]) != q.State {
		return unix.EINVAL // the firmware: the driver (mlx5_ib_modify_qp) takes the program's word
	}
	if mask&maskAlt != 0 && q.Port.Link == Ethernet {
		return unix.EINVAL // core/verbs.c, _ib_modify_qp
	}
	if mask&(MaskAV|MaskPort) == MaskAV && (mask&MaskState == 0 || to != StateRTR) {
		mask |= MaskPort // core/uverbs_cmd.c, modify_qp
		r[104] = r[31]
	}
	mask &^= ignored[q.Service]
	if mask&maskCurrent == 0 && q.told != q.State && to != StateReset && to != StateError {
		return unix.EINVAL // the firmware: the driver (of mlx5 qp.c, mlx5_ib_modify_qp) begins with the state that it knows
	}
	if !transition(q.Service, q.State, to, mask) {
		return unix.EINVAL // core/verbs.c, ib_modify_qp_is_ok: the driver calls it
	}
	if mask&MaskPort != 0 && r[104] != 1 {
		return unix.EINVAL // uverbs_cmd.c, modify_qp: port out of range
	}
	if mask&MaskAV != 0 {
		if r[31] != 1 {
			return unix.EINVAL // uverbs_cmd.c, modify_qp
		}
		if errno := q.Port.CheckPath(r[30] != 0, r[24]); errno != 0 {
			return errno
		}
	}
	a := q.Attr
	if mask&MaskAV != 0 {
		copy(a.Path[:], r[:32])
	}
	for bit, field := range map[uint32]struct {
		to *uint32
		at int
	}{MaskQKey: {&a.QKey, 72}, MaskRQPSN: {&a.RQPSN, 76}, MaskSQPSN: {&a.SQPSN, 80}, MaskDest: {&a.Dest, 84}, MaskAccess: {&a.Access, 88}} {
		if mask&bit != 0 {
			*field.to = le.Uint32(r[field.at:])
		}
	}
	for _, number := range []*uint32{&a.RQPSN, &a.SQPSN, &a.Dest} {
		*number &= 0xffffff
	}
	for bit, field := range map[uint32]struct {
		to *byte
		at int
	}{MaskMTU: {&a.MTU, 98}, MaskMaxRead: {&a.MaxRead, 101}, MaskMaxDest: {&a.MaxDest, 102}, MaskMinRNR: {&a.MinRNR, 103},
		MaskPort: {&a.Port, 104}, MaskTimeout: {&a.Timeout, 105}, MaskRetry: {&a.Retry, 106}, MaskRNRRetry: {&a.RNRRetry, 107}} {
		if mask&bit != 0 {
			*field.to = r[field.at]
		}
	}
	if mask&MaskPKey != 0 {
		a.PKeyIndex = le.Uint16(r[92:])
	}
	if mask&MaskMTU != 0 && (a.MTU == 0 || a.MTU > MTUCode) {
		return unix.EINVAL // hw/mlx5/qp.c, __mlx5_ib_modify_qp
	}
	if errno := check(&a); errno != 0 {
		return errno
	}
	q.told = to
	switch to {
	case StateReset:
		q.State = to
		q.reset()
		return 0
	case StateError:
		q.toError()
		return 0
	}
	q.Attr, q.State = a, to
	if to == StateSQD && mask&maskSQD != 0 && r[100] != 0 {
		q.Queues.Event(EventSQDrained) // nothing that was begun is under way
	}
	q.Schedule()
	return 0
}

// Query is the part of struct ib_uverbs_query_qp_resp that is not about the queues.
func (q *QP) Query() []byte {
	a := &q.Attr
	q.told = q.State // of mlx5 qp.c, query_qp_attr
	b := make([]byte, 128)
	copy(b, a.Path[:])
	for i, v := range []uint32{a.QKey, a.RQPSN, a.SQPSN, a.Dest, a.Access} {
		le.PutUint32(b[84+4*i:], v)
	}
	le.PutUint16(b[104:], a.PKeyIndex)
	b[108], b[109], b[110] = byte(q.State), byte(q.State), a.MTU
	copy(b[113:], []byte{a.MaxRead, a.MaxDest, a.MinRNR, a.Port, a.Timeout, a.Retry, a.RNRRetry})
	return b
}

// Bits of attr_mask (enum ib_qp_attr_mask).
const (
	MaskState    = 1 << 0
	maskCurrent  = 1 << 1
	maskSQD      = 1 << 2
	MaskAccess   = 1 << 3
	MaskPKey     = 1 << 4
	MaskPort     = 1 << 5
	MaskQKey     = 1 << 6
	MaskAV       = 1 << 7
	MaskMTU      = 1 << 8
	MaskTimeout  = 1 << 9
	MaskRetry    = 1 << 10
	MaskRNRRetry = 1 << 11
	MaskRQPSN    = 1 << 12
	MaskMaxRead  = 1 << 13
	maskAlt      = 1 << 14
	MaskMinRNR   = 1 << 15
	MaskSQPSN    = 1 << 16
	MaskMaxDest  = 1 << 17
	maskMigrate  = 1 << 18
	MaskDest     = 1 << 20
)

// A change of state requires some attributes and allows others, as ib_modify_qp_is_ok
// has it (drivers/infiniband/core/verbs.c, qp_state_table).
type change struct{ required, optional uint32 }

var changes = map[Service]map[[2]int]change{
	RC: {
		{StateReset, StateInit}: {MaskPKey | MaskPort | MaskAccess, 0},
		{StateInit, StateInit}:  {0, MaskPKey | MaskPort | MaskAccess},
		{StateInit, StateRTR}: {MaskAV | MaskMTU | MaskDest | MaskRQPSN | MaskMaxDest | MaskMinRNR,
			maskAlt | MaskAccess | MaskPKey},
		{StateRTR, StateRTS}: {MaskTimeout | MaskRetry | MaskRNRRetry | MaskSQPSN | MaskMaxRead,
			maskCurrent | maskAlt | MaskAccess | MaskMinRNR | maskMigrate},
		{StateRTS, StateRTS}: {0, maskCurrent | MaskAccess | MaskMinRNR | maskAlt | maskMigrate},
		{StateRTS, StateSQD}: {0, maskSQD},
		{StateSQD, StateRTS}: {0, maskCurrent | maskAlt | MaskAccess | MaskMinRNR | maskMigrate},
		{StateSQD, StateSQD}: {0, MaskPort | MaskAV | MaskTimeout | MaskRetry | MaskRNRRetry | MaskMaxRead | MaskMaxDest |
			maskAlt | MaskAccess | MaskPKey | MaskMinRNR | maskMigrate},
	},
	UC: {
		{StateReset, StateInit}: {MaskPKey | MaskPort | MaskAccess, 0},
		{StateInit, StateInit}:  {0, MaskPKey | MaskPort | MaskAccess},
		{StateInit, StateRTR}:   {MaskAV | MaskMTU | MaskDest | MaskRQPSN, maskAlt | MaskAccess | MaskPKey},
		{StateRTR, StateRTS}:    {MaskSQPSN, maskCurrent | maskAlt | MaskAccess | maskMigrate},
		{StateRTS, StateRTS}:    {0, maskCurrent | MaskAccess | maskAlt | maskMigrate},
		{StateRTS, StateSQD}:    {0, maskSQD},
		{StateSQD, StateRTS}:    {0, maskCurrent | maskAlt | MaskAccess | maskMigrate},
		{StateSQD, StateSQD}:    {0, MaskAV | maskAlt | MaskAccess | MaskPKey | maskMigrate},
		{StateSQE, StateRTS}:    {0, maskCurrent | MaskAccess},
	},
	UD: {
		{StateReset, StateInit}: {MaskPKey | MaskPort | MaskQKey, 0},
		{StateInit, StateInit}:  {0, MaskPKey | MaskPort | MaskQKey},
		{StateInit, StateRTR}:   {0, MaskPKey | MaskQKey},
		{StateRTR, StateRTS}:    {MaskSQPSN, maskCurrent | MaskQKey},
		{StateRTS, StateRTS}:    {0, maskCurrent | MaskQKey},
		{StateRTS, StateSQD}:    {0, maskSQD},
		{StateSQD, StateRTS}:    {0, maskCurrent | MaskQKey},
		{StateSQD, StateSQD}:    {0, MaskPKey | MaskQKey},
		{StateSQE, StateRTS}:    {0, maskCurrent | MaskQKey},
	},
	XRCInitiator: {
		{StateReset, StateInit}: {MaskPKey | MaskPort | MaskAccess, 0},
		{StateInit, StateInit}:  {0, MaskPKey | MaskPort | MaskAccess},
		{StateInit, StateRTR}:   {MaskAV | MaskMTU | MaskDest | MaskRQPSN, maskAlt | MaskAccess | MaskPKey},
		{StateRTR, StateRTS}: {MaskTimeout | MaskRetry | MaskRNRRetry | MaskSQPSN | MaskMaxRead,
			maskCurrent | maskAlt | MaskAccess | maskMigrate},
		{StateRTS, StateRTS}: {0, maskCurrent | MaskAccess | maskAlt | maskMigrate},
		{StateRTS, StateSQD}: {0, maskSQD},
		{StateSQD, StateRTS}: {0, maskCurrent | maskAlt | MaskAccess | maskMigrate},
		{StateSQD, StateSQD}: {0, MaskPort | MaskAV | MaskTimeout | MaskRetry | MaskRNRRetry | MaskMaxRead |
			maskAlt | MaskAccess | MaskPKey | maskMigrate},
	},
	XRCTarget: {
		{StateReset, StateInit}: {MaskPKey | MaskPort | MaskAccess, 0},
		{StateInit, StateInit}:  {0, MaskPKey | MaskPort | MaskAccess},
		{StateInit, StateRTR}: {MaskAV | MaskMTU | MaskDest | MaskRQPSN | MaskMaxDest | MaskMinRNR,
			maskAlt | MaskAccess | MaskPKey},
		{StateRTR, StateRTS}: {MaskTimeout | MaskSQPSN, maskCurrent | maskAlt | MaskAccess | MaskMinRNR | maskMigrate},
		{StateRTS, StateRTS}: {0, maskCurrent | MaskAccess | maskAlt | maskMigrate | MaskMinRNR},
		{StateRTS, StateSQD}: {0, maskSQD},
		{StateSQD, StateRTS}: {0, maskCurrent | maskAlt | MaskAccess | MaskMinRNR | maskMigrate},
		{StateSQD, StateSQD}: {0, MaskPort | MaskAV | MaskTimeout | MaskMaxDest |
			maskAlt | MaskAccess | MaskPKey | MaskMinRNR | maskMigrate},
	},
}

// transition says whether a change of state with these attributes is one.
func transition(s Service, from, to int, mask uint32) bool {
	if from > StateError || to > StateError {
		return false
	}
	if mask&maskCurrent != 0 && from != StateRTR && from != StateRTS && from != StateSQD && from != StateSQE {
		return false
	}
	if to == StateReset || to == StateError && from != StateReset {
		return mask&^MaskState == 0
	}
	c, ok := changes[s][[2]int{from, to}]
	given := mask &^ MaskState
	return ok && given&c.required == c.required && given&^(c.required|c.optional) == 0
}
