package soft

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"golang.org/x/sys/unix"
)

// datagramQP is a queue pair of the unreliable datagram service. It has no peer and
// no shared memory: PostSend gathers the message and hands it to the QP that it is
// for, in this process at once, in another one by a socket (datagramroute_linux.go). What
// finds no QP, another Q_Key or no receive is lost, and succeeds all the same.
//
// Lock order: sendMu of one QP, recvMu of another one.
type datagramQP struct {
	dev      *device
	pd       *pd
	num      uint32
	cap      verbs.QPCap
	always   verbs.SendFlags // SendSignaled if every request gives a completion
	sendCQ   *cq
	recvCQ   *cq
	srq      *srq
	unpolled atomic.Int32 // completions of requests that nobody polled
	arrived  atomic.Int32 // the same of receives

	sendMu sync.Mutex
	attr   verbs.QPAttr // guarded by sendMu
	sq     sendQueue    // guarded by sendMu: what was posted in SQD
	buffer []byte       // guarded by sendMu: the message that is sent
	sgl    *region      // guarded by sendMu: the last one used
	listed bool         // guarded by sendMu: the listener counts on it

	recvMu    sync.Mutex
	recvs     []srqEntry // guarded by recvMu: a ring
	first, n  int        // guarded by recvMu
	qkey      uint32     // guarded by recvMu
	placed    *region    // guarded by recvMu: the last one that a receive used
	shared    partial    // guarded by recvMu: the receive that was taken from the SRQ
	destroyed bool       // guarded by both
	resets    int        // guarded by both: how many there were

	// state is a verbs.QPState, written under sendMu and recvMu.
	state atomic.Uint32
	life  sync.Mutex // one RESET or Destroy at a time; outermost
}

const (
	// bytes before the payload that a receive takes (InfiniBand Architecture Specification
	// 11.4.1.2)
	grhSize     = 40
	qkeyOfTheQP = 1 << 31 // in the Q_Key of a request: that of the QP counts (section 10.2.5)
	groupQPN    = 1<<24 - 1
	maxAH       = 1 << 20
)

// datagramTable finds the datagram QPs of a device. It is a leaf of the lock order.
type datagramTable struct {
	sync.RWMutex
	byNum  map[uint32]*datagramQP
	groups map[verbs.GID]*group // that QPs here are members of
}

// group is a multicast group, as far as this device goes.
type group struct {
	members []*datagramQP
	mark    io.Closer
}

// addressHandle names a device, or a group.
type addressHandle struct {
	pd   *pd
	av   verbs.AddressVector
	open atomic.Bool
}

func (p *pd) CreateAH(av *verbs.AddressVector) (verbs.AHDriver, error) {
	if av.DGID == (verbs.GID{}) || !av.IsGlobal || av.SGIDIndex != 0 {
		return nil, fmt.Errorf("%w: an address needs a GID, and the source is GID 0", verbs.ErrInvalid)
	}
	if p.dev.handles.Add(1) > maxAH {
		p.dev.handles.Add(-1)
		return nil, fmt.Errorf("%d address handles: %w", maxAH, unix.ENOMEM)
	}
	if err := p.users.add(); err != nil {
		p.dev.handles.Add(-1)
		return nil, err
	}
	ah := &addressHandle{pd: p, av: *av}
	ah.open.Store(true)
	return ah, nil
}

func (ah *addressHandle) Destroy() error {
	if !ah.open.Swap(false) {
		return verbs.ErrClosed
	}
	ah.pd.dev.handles.Add(-1)
	ah.pd.users.done()
	return nil
}

func (p *pd) createDatagramQP(attr *verbs.QPInitAttr, send, recv *cq, s *srq) (verbs.QPDriver, error) {
	q := &datagramQP{dev: p.dev, pd: p, cap: attr.Cap, sendCQ: send, recvCQ: recv, srq: s}
	q.cap.MaxSendWR = max(q.cap.MaxSendWR, 1)
	if attr.SignalAll {
		q.always = verbs.SendSignaled
	}
	if s != nil {
		q.cap.MaxRecvWR = 0
		q.shared.sgl = make([]verbs.SGE, 0, maxSGE)
		if s.pd != p {
			return nil, fmt.Errorf("%w: SRQ of another PD", verbs.ErrInvalid)
		}
	}
	for i, u := range q.uses() {
		if err := u.add(); err != nil {
			for _, earlier := range q.uses()[:i] {
				earlier.done()
			}
			return nil, err
		}
	}
	q.dev.routes.begin()
	if err := q.dev.addDatagramQP(q); err != nil {
		q.dev.endDatagrams()
		q.endUse()
		return nil, err
	}
	attr.Cap = q.cap
	return q, nil
}

func (d *device) addDatagramQP(q *datagramQP) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.newNumber(&q.num); err != nil {
		return err
	}
	d.datagrams.Lock()
	defer d.datagrams.Unlock()
	d.datagrams.byNum[q.num] = q
	return nil
}

// endDatagrams ends, with the last datagram QP, the connections for datagrams.
func (d *device) endDatagrams() {
	if d.routes.end() {
		d.listener.endDatagrams()
	}
}

func (d *device) datagramQP(num uint32) *datagramQP {
	d.datagrams.RLock()
	defer d.datagrams.RUnlock()
	return d.datagrams.byNum[num]
}

func (d *device) allDatagramQPs() []*datagramQP {
	d.datagrams.RLock()
	defer d.datagrams.RUnlock()
	list := make([]*datagramQP, 0, len(d.datagrams.byNum))
	for _, q := range d.datagrams.byNum {
		list = append(list, q)
	}
	return list
}

func (q *datagramQP) uses() []*users {
	list := []*users{&q.pd.users, &q.sendCQ.users, &q.recvCQ.users}
	if q.srq != nil {
		list = append(list, &q.srq.users)
	}
	return list
}

func (q *datagramQP) endUse() {
	for _, u := range q.uses() {
		u.done()
	}
}

func (q *datagramQP) Num() uint32 { return q.num }

func (q *datagramQP) Query() (verbs.QPAttr, error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.destroyed {
		return verbs.QPAttr{}, verbs.ErrClosed
	}
	a := q.attr
	a.State = verbs.QPState(q.state.Load())
	a.CurState, a.Cap = a.State, q.cap
	return a, nil
}

func (q *datagramQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.life.Lock()
	defer q.life.Unlock()
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	from := q.state.Load()
	to := from
	if mask&verbs.QPAttrState != 0 {
		to = uint32(attr.State)
	}
	switch {
	case q.destroyed:
		return verbs.ErrClosed
	case mask&verbs.QPAttrPKeyIndex != 0 && attr.PKeyIndex != 0:
		return errPKeyIndex
	case to == stateReset:
		q.reset()
		return nil
	case from == stateErr && to != stateErr:
		return fmt.Errorf("%w: the QP has gone to ERR", verbs.ErrInvalid)
	}
	set := func(bit verbs.QPAttrMask, assign func()) {
		if mask&bit != 0 {
			assign()
		}
	}
	set(verbs.QPAttrPort, func() { q.attr.Port = attr.Port })
	set(verbs.QPAttrPKeyIndex, func() { q.attr.PKeyIndex = attr.PKeyIndex })
	set(verbs.QPAttrSQPSN, func() { q.attr.SQPSN = attr.SQPSN })
	set(verbs.QPAttrQKey, func() { q.attr.QKey = attr.QKey })
	if from == stateInit && to == stateRTR && !q.listed {
		q.listed = true
		q.dev.listener.begin()
	}
	q.setState(to)
	switch {
	case to == from:
	case to == stateErr:
		q.fail()
	case to == stateSQD && attr.EnSQDAsyncNotify && mask&verbs.QPAttrEnSQDNotify != 0:
		// Nothing is ever under way.
		q.dev.raise(verbs.DriverEvent{Type: verbs.EventSQDrained, QPN: q.num})
	case to == stateRTS:
		q.drive()
	}
	return nil
}

// setState is called with sendMu held.
func (q *datagramQP) setState(s uint32) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	q.state.Store(s)
	q.qkey = q.attr.QKey
}

// fail flushes what is posted. sendMu is held.
func (q *datagramQP) fail() {
	q.setState(stateErr)
	q.flushSends()
	if q.srq != nil {
		q.dev.raise(verbs.DriverEvent{Type: verbs.EventLastWQEReached, QPN: q.num})
	}
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	for q.n > 0 {
		q.flushed(q.pop().id)
	}
}

func (q *datagramQP) flushSends() {
	for q.sq.n != 0 {
		wr := &q.sq.oldest().wr
		q.finish(wr.ID, wr.Opcode, 0, verbs.WCWRFlushErr)
		q.sq.drop()
	}
}

// reset drops everything. sendMu and life are held.
func (q *datagramQP) reset() {
	if q.listed {
		q.listed = false
		q.dev.listener.end()
	}
	q.recvMu.Lock()
	q.state.Store(stateReset)
	q.resets++
	q.first, q.n, q.qkey = 0, 0, 0
	q.recvMu.Unlock()
	q.attr = verbs.QPAttr{}
	q.sq.clear()
	q.sendCQ.local.purge(q.sendCQ, &q.unpolled)
	q.recvCQ.local.purge(q.recvCQ, &q.arrived)
	q.unpolled.Store(0)
	q.arrived.Store(0)
}

func (q *datagramQP) Destroy() error {
	q.life.Lock()
	defer q.life.Unlock()
	q.sendMu.Lock()
	if q.destroyed {
		q.sendMu.Unlock()
		return verbs.ErrClosed
	}
	q.reset()
	q.recvMu.Lock()
	q.destroyed = true
	q.recvMu.Unlock()
	q.sendMu.Unlock()
	q.dev.leaveGroups(q)
	// Not earlier: as long as a post may run, quiesce has to find the QP.
	q.dev.datagrams.Lock()
	delete(q.dev.datagrams.byNum, q.num)
	q.dev.datagrams.Unlock()
	q.dev.endDatagrams()
	q.endUse()
	return nil
}

func (q *datagramQP) PostSend(wrs []verbs.SendWR) (int, error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	for i := range wrs {
		if err := q.post(&wrs[i]); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

// WQEBytes is the header of the message.
func (q *datagramQP) WQEBytes(*verbs.SendWR) int { return protocol.DatagramHeaderSize }

func (q *datagramQP) post(wr *verbs.SendWR) error {
	state := q.state.Load()
	switch {
	case q.destroyed:
		return verbs.ErrClosed
	case state < stateRTS:
		return errPostState
	case q.sq.n+int(q.unpolled.Load()) >= q.cap.MaxSendWR:
		return errQueueDepth
	case state == stateErr || state == stateSQE:
		q.finish(wr.ID, wr.Opcode, 0, verbs.WCWRFlushErr)
	case state == stateSQD:
		q.sq.add(wr, q.cap.MaxSendWR)
	default:
		q.send(wr)
	}
	return nil
}

// drive sends what was posted in SQD.
func (q *datagramQP) drive() {
	for q.sq.n != 0 && q.state.Load() == stateRTS {
		q.send(&q.sq.oldest().wr)
		q.sq.drop()
	}
	if q.state.Load() == stateSQE {
		q.flushSends() // what stands behind the request that has failed
	}
}

// send sends a message and completes its request. An error of our own takes the QP to SQE.
func (q *datagramQP) send(wr *verbs.SendWR) {
	n := wr.Len()
	status := verbs.WCSuccess
	ah, ok := wr.Datagram.AH.Driver().(*addressHandle)
	switch {
	case !ok || ah.pd != q.pd || !ah.open.Load():
		status = verbs.WCLocQPOpErr
	case n > protocol.MaxDatagram:
		status = verbs.WCLocLenErr
	default:
		if q.buffer == nil {
			q.buffer = make([]byte, protocol.DatagramHeaderSize+protocol.MaxDatagram)
		}
		message := q.buffer[:protocol.DatagramHeaderSize+n]
		if !gatherAt(q.pd, &q.sgl, message[protocol.DatagramHeaderSize:], wr, 0) {
			status = verbs.WCLocProtErr
			break
		}
		h := q.header(wr, ah)
		h.Encode(message)
		q.dev.forward(&h, message)
	}
	if status != verbs.WCSuccess {
		q.finish(wr.ID, wr.Opcode, 0, status)
		q.setState(stateSQE)
		return
	}
	if (wr.Flags|q.always)&verbs.SendSignaled != 0 {
		q.finish(wr.ID, wr.Opcode, n, status)
	}
}

func (q *datagramQP) header(wr *verbs.SendWR, ah *addressHandle) protocol.Datagram {
	h := protocol.Datagram{
		From: protocol.Endpoint{GID: q.dev.gid, QPN: q.num}, To: protocol.Endpoint{GID: ah.av.DGID, QPN: wr.Datagram.QPN}, QKey: wr.Datagram.QKey,
		TrafficClass: ah.av.TrafficClass, FlowLabel: ah.av.FlowLabel, HopLimit: ah.av.HopLimit, SL: ah.av.SL,
	}
	if h.QKey&qkeyOfTheQP != 0 {
		h.QKey = q.attr.QKey
	}
	if wr.Opcode == verbs.OpSendWithImm {
		h.Flags, h.Imm = protocol.DatagramImm, wr.Imm
	}
	if wr.Flags&verbs.SendSolicited != 0 {
		h.Flags |= protocol.DatagramSolicited
	}
	return h
}

func (q *datagramQP) finish(id uint64, op verbs.Opcode, n int, status verbs.WCStatus) {
	q.unpolled.Add(1)
	q.sendCQ.complete(&q.unpolled, verbs.WC{ID: id, Status: status, Opcode: wcOpcodes[op], ByteLen: uint32(n), QPN: q.num}, false)
}

// forward hands a message to the QPs that it is for, wherever they are.
func (d *device) forward(h *protocol.Datagram, message []byte) {
	if h.To.GID.IsMulticast() {
		d.forwardToGroup(h, message)
		return
	}
	if to := deviceOf(h.To.GID); to != nil && (to == d || !strangers.Load()) {
		to.deliver(h, message[protocol.DatagramHeaderSize:])
		return
	}
	d.routes.send(h.To.GID, message)
}

// deliver hands a message to the QP here that it is for.
func (d *device) deliver(h *protocol.Datagram, payload []byte) {
	if !h.To.GID.IsMulticast() {
		if q := d.datagramQP(h.To.QPN); q != nil {
			q.take(h, payload)
		}
		return
	}
	if h.To.QPN != groupQPN {
		return
	}
	d.datagrams.RLock()
	var members []*datagramQP
	if g := d.datagrams.groups[h.To.GID]; g != nil {
		members = slices.Clone(g.members)
	}
	d.datagrams.RUnlock()
	for _, q := range members {
		q.take(h, payload)
	}
}

// failNow takes the QP to ERR.
func (q *datagramQP) failNow() {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	q.failLocked()
}

// failIn does so unless there was another RESET since the number of them.
func (q *datagramQP) failIn(resets int) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.resets == resets {
		q.failLocked()
	}
}

// failLocked does so with sendMu held.
func (q *datagramQP) failLocked() {
	if s := q.state.Load(); !q.destroyed && s != stateReset && s != stateErr {
		q.fail()
	}
}

// take puts a message into the oldest receive, or drops it. One that is longer than its receive is dropped
// too: nobody who sends may stop a QP.
func (q *datagramQP) take(h *protocol.Datagram, payload []byte) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	switch q.state.Load() {
	case stateRTR, stateRTS, stateSQD, stateSQE:
	default:
		return
	}
	if h.QKey != q.qkey {
		return
	}
	n := uint32(grhSize + len(payload))
	e, sgl, ok := q.oldest(n)
	if !ok {
		return
	}
	wc := verbs.WC{ID: e.id, Opcode: verbs.WCRecv, Flags: verbs.WCGRH, ByteLen: n, QPN: q.num, SrcQPN: h.From.QPN}
	if h.Flags&protocol.DatagramImm != 0 {
		wc.Flags |= verbs.WCWithImm
		wc.Imm = h.Imm
	}
	var grh [grhSize]byte
	h.PutGRH(grh[:], len(payload))
	ok = scatter(q.pd, &q.placed, sgl, 0, grh[:]) && scatter(q.pd, &q.placed, sgl, grhSize, payload)
	if !ok {
		wc = verbs.WC{ID: e.id, Status: verbs.WCLocProtErr, Opcode: verbs.WCRecv, QPN: q.num}
		resets := q.resets
		// The sender holds a sendMu, which may be this one.
		q.dev.listener.handlers.Go(func() { q.failIn(resets) }) // ends by itself
	}
	q.arrived.Add(1)
	q.recvCQ.complete(&q.arrived, wc, h.Flags&protocol.DatagramSolicited != 0)
}

// oldest takes the receive for n bytes; false if there is none, or it is too short.
func (q *datagramQP) oldest(n uint32) (recvEntry, []verbs.SGE, bool) {
	if q.srq != nil {
		if !q.srq.takeFor(&q.shared, n) {
			return recvEntry{}, nil, false
		}
		return q.shared.recv, q.shared.sgl, true
	}
	if q.n == 0 || q.recvs[q.first].total < n {
		return recvEntry{}, nil, false
	}
	e := q.pop()
	return e.recvEntry, e.sgl, true
}

// pop removes the oldest receive, which may be used until the next is posted.
func (q *datagramQP) pop() *srqEntry {
	e := &q.recvs[q.first]
	q.first = (q.first + 1) % len(q.recvs)
	q.n--
	return e
}

func (q *datagramQP) flushed(id uint64) {
	q.arrived.Add(1)
	q.recvCQ.complete(&q.arrived, verbs.WC{ID: id, Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv, QPN: q.num}, true)
}

func (q *datagramQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	state := q.state.Load()
	switch {
	case q.destroyed:
		return 0, verbs.ErrClosed
	case state == stateReset:
		return 0, errRecvState
	}
	if q.recvs == nil {
		q.recvs = make([]srqEntry, max(q.cap.MaxRecvWR, 1))
	}
	for i := range wrs {
		if q.n+int(q.arrived.Load()) >= q.cap.MaxRecvWR {
			return i, verbs.ErrQueueFull
		}
		if state == stateErr {
			q.flushed(wrs[i].ID)
			continue
		}
		e := &q.recvs[(q.first+q.n)%len(q.recvs)]
		if err := e.set(&wrs[i]); err != nil {
			return i, err
		}
		q.n++
	}
	return len(wrs), nil
}
