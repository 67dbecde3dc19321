package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// qp is a connected queue pair, reliable or not. Its send half (send_linux.go,
// sendqueue_linux.go, outbound) works on the peer's segment, its receive half
// (inbound) on our own.
type qp struct {
	sendMu serial.Section // of PostSend
	// open: posts may take the fast path, because nothing is queued before
	// them and the peer is there. Guarded by sendMu, as all of the next ones.
	open     bool
	always   verbs.SendFlags // SendSignaled if every request gives a completion
	unpolled atomic.Int32    // completions of ours that nobody polled
	out      outbound
	cached   *remote // last remote region used
	sgl      *region // last local region used
	remotes  map[uint32]*remote
	sweepAt  int                 // how many of them there may be before the dead ones go
	longest  uint64              // of its regions that we map
	asked    map[uint32]struct{} // keys that the peer was asked for
	refused  map[uint32]error    // keys that it refused, until they are reported
	gone     []*remote           // to be unmapped when sendMu is released
	sq       sendQueue
	acks     ackQueue
	timer    *time.Timer
	due      time.Time // of the timer
	attr     verbs.QPAttr
	link     link
	by       *connector
	left     bool     // Leave was called
	pairing  *pairing // in progress; a failure does not end it, for the peer is to be told of that
	pending  bool     // after is to be dealt with when sendMu is released
	after    failure  // what moved the QP to ERR
	alone    bool     // of an unreliable QP: its peer is gone, what it sends is lost
	posts    int64    // counted while faults are injected

	// state is a verbs.QPState, written under sendMu and recvMu.
	state atomic.Uint32

	dev    *device
	pd     *pd
	uc     bool // of the unreliable connection service (concludeUnreliable)
	atPoll bool // short WRITEs with immediate are placed by Poll (QPInitAttr.PlaceAtPoll)
	num    uint32
	cap    verbs.QPCap
	sendCQ *cq
	recvCQ *cq
	srq    *srq

	recvMu serial.Section // of PostRecv
	in     *inbound       // replaced by RESET under sendMu and recvMu, nil once destroyed

	cpus cpuWords

	life      sync.Mutex // one RESET or Destroy at a time; outermost
	destroyed atomic.Bool
}

const (
	stateReset = uint32(verbs.QPStateReset)
	stateInit  = uint32(verbs.QPStateInit)
	stateRTR   = uint32(verbs.QPStateRTR)
	stateRTS   = uint32(verbs.QPStateRTS)
	stateSQD   = uint32(verbs.QPStateSQD)
	stateSQE   = uint32(verbs.QPStateSQE)
	stateErr   = uint32(verbs.QPStateErr)
)

func (p *pd) CreateQP(attr *verbs.QPInitAttr, send, recv verbs.CQDriver, s verbs.SRQDriver) (verbs.QPDriver, error) {
	if attr.Type == verbs.QPTypeUD {
		shared, _ := s.(*srq)
		return p.createDatagramQP(attr, send.(*cq), recv.(*cq), shared)
	}
	if attr.Type == verbs.QPTypeUC && s != nil {
		return nil, fmt.Errorf("%w: an SRQ for a UC QP", verbs.ErrUnsupported)
	}
	q := &qp{dev: p.dev, pd: p, uc: attr.Type == verbs.QPTypeUC, sendCQ: send.(*cq), recvCQ: recv.(*cq), longest: protocol.MaxMRSize}
	q.cap = attr.Cap
	q.cap.MaxSendWR = max(q.cap.MaxSendWR, 1)
	if attr.SingleThreaded {
		q.sendMu.Promise()
		q.recvMu.Promise()
	}
	if attr.SignalAll {
		q.always = verbs.SendSignaled
	}
	q.atPoll = attr.PlaceAtPoll && s == nil
	if s != nil {
		q.srq = s.(*srq)
		q.cap.MaxRecvWR = 0
		if q.srq.pd != p {
			return nil, fmt.Errorf("%w: SRQ of another PD", verbs.ErrInvalid)
		}
	}
	q.out.wakeFD = -1
	if err := q.begin(); err != nil {
		return nil, err
	}
	attr.Cap = q.cap
	return q, nil
}

// begin makes the QP part of its device.
func (q *qp) begin() error {
	for i, u := range q.uses() {
		if err := u.add(); err != nil {
			for _, earlier := range q.uses()[:i] {
				earlier.done()
			}
			return err
		}
	}
	in, err := q.newInbound()
	if err != nil {
		q.endUse()
		return err
	}
	q.in = in
	q.cpus.set(&in.seg.Header.CPUs, nil)
	// Once it is in the table it may be destroyed with the device: not before
	// it is whole.
	q.life.Lock()
	defer q.life.Unlock()
	if err := q.dev.addQP(q); err != nil {
		in.seg.release()
		q.endUse()
		return err
	}
	q.recvCQ.attach(in)
	return nil
}

// uses are the objects that may not be closed before the QP.
func (q *qp) uses() []*users {
	list := []*users{&q.pd.users, &q.sendCQ.users, &q.recvCQ.users}
	if q.srq != nil {
		list = append(list, &q.srq.users)
	}
	return list
}

func (q *qp) endUse() {
	for _, u := range q.uses() {
		u.done()
	}
}

// srqReceives is the window of a QP that receives from an SRQ: how far its
// peer may run ahead of Poll.
const srqReceives = 512

func (q *qp) newInbound() (*inbound, error) {
	n := q.cap.MaxRecvWR
	if q.srq != nil {
		n = srqReceives
	}
	seg, err := q.dev.newSegment(protocol.GeometryFor(n))
	if err != nil {
		return nil, err
	}
	return newInbound(q, seg), nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Query() (verbs.QPAttr, error) {
	if q.destroyed.Load() {
		return verbs.QPAttr{}, verbs.ErrClosed
	}
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	a := q.attr
	a.State = verbs.QPState(q.state.Load())
	a.CurState = a.State
	a.SQDraining = a.State == verbs.QPStateSQD && !q.drained()
	a.Cap = q.cap
	return a, nil
}

// setState is called with sendMu held.
func (q *qp) setState(s uint32) {
	q.recvMu.Lock()
	q.state.Store(s)
	q.recvMu.Unlock()
	q.open = q.mayRun()
	q.publishGate()
}

// publishGate tells the peer what we let in.
func (q *qp) publishGate() {
	g := uint32(q.attr.MinRNRTimer&31) << protocol.GateRNR
	if q.attr.Access&verbs.AccessRemoteWrite != 0 {
		g |= protocol.GateWrite
	}
	if q.attr.Access&verbs.AccessRemoteRead != 0 {
		g |= protocol.GateRead
	}
	if q.attr.Access&verbs.AccessRemoteAtomic != 0 {
		g |= protocol.GateAtomic
	}
	if q.attr.Access&verbs.AccessFlushGlobal != 0 {
		g |= protocol.GateFlush
	}
	switch q.state.Load() {
	case stateRTR, stateRTS, stateSQD, stateSQE:
		g |= protocol.GateOpen
	case stateErr:
		g |= protocol.GateFailed
	}
	q.in.seg.Header.Gate.Store(g)
}

// mayRun reports whether posts may take the fast path.
func (q *qp) mayRun() bool {
	return q.state.Load() == stateRTS && q.link != nil && q.sq.n == 0 && q.acks.n == 0 &&
		!q.out.srq && !q.alone && q.dev.faults.Load() == nil
}

// reset gives the QP the state that CreateQP gave it, with a new segment: the
// peer may still have the old one.
func (q *qp) reset() error {
	q.life.Lock()
	defer q.life.Unlock()
	if q.destroyed.Load() {
		return verbs.ErrClosed
	}
	fresh, err := q.newInbound()
	if err != nil {
		return err
	}
	old, l := q.unpair(func() *inbound {
		old := q.in
		q.in = fresh
		q.attr = verbs.QPAttr{}
		return old
	})
	if l != nil {
		l.close()
	}
	q.recvCQ.detach(old)
	q.sendCQ.local.purge(q.sendCQ, &q.unpolled)
	q.unpolled.Store(0)
	old.seg.release()
	q.recvCQ.attach(fresh)
	return nil
}

// unpair takes the QP back to RESET and lets replace change in while no post
// runs. It returns the inbound and the link to be disposed of.
func (q *qp) unpair(replace func() *inbound) (*inbound, link) {
	q.sendMu.Lock()
	q.out.publish()
	q.in.seg.Header.Gate.Store(protocol.GateFailed)
	p, l := q.pairing, q.link
	q.pairing, q.link, q.by, q.left = nil, nil, nil, false
	q.cpus.set(nil, nil) // before the memory goes in which they are
	q.out.close()
	q.forgetRemotes()
	q.sq.clear()
	q.acks.clear()
	q.stopTimer()
	q.open, q.alone = false, false
	q.recvMu.Lock()
	q.state.Store(stateReset)
	old := replace()
	if q.in != nil {
		q.cpus.set(&q.in.seg.Header.CPUs, nil)
	}
	q.recvMu.Unlock()
	q.sendMu.Unlock()
	if p != nil {
		p.stop()
		p.wait() // ends because its socket is closed
	}
	q.dev.dropWindows(q)
	return old, l
}

func (q *qp) Destroy() error {
	q.life.Lock()
	defer q.life.Unlock()
	if q.destroyed.Swap(true) {
		return verbs.ErrClosed
	}
	in, l := q.unpair(func() *inbound {
		old := q.in
		q.in = nil
		return old
	})
	if l != nil {
		l.close()
	}
	q.recvCQ.detach(in)
	q.sendCQ.local.purge(q.sendCQ, &q.unpolled)
	in.seg.release()
	// Not earlier: as long as a post may run, quiesce has to find the QP.
	q.dev.removeQP(q)
	q.endUse()
	return nil
}

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.sendMu.Lock()
	if q.destroyed.Load() {
		q.sendMu.Unlock()
		return verbs.ErrClosed
	}
	from := q.state.Load()
	to := from
	if mask&verbs.QPAttrState != 0 {
		to = uint32(attr.State)
	}
	if err := q.checkAttr(attr, mask); err != nil {
		q.sendMu.Unlock()
		return err
	}
	switch to {
	case stateErr:
		if from == stateReset {
			// Nothing is posted, nobody is paired: only the state changes.
			q.setState(stateErr)
		}
		q.failLocked(failure{})
		q.unlock()
		return nil
	case stateReset:
		q.sendMu.Unlock()
		return q.reset()
	}
	if from == stateErr {
		// The peer took us there while the caller thought of another state.
		q.sendMu.Unlock()
		return fmt.Errorf("%w: the QP has gone to ERR", verbs.ErrInvalid)
	}
	q.setAttr(attr, mask)
	q.setState(to)
	var p *pairing
	if from == stateInit && to == stateRTR {
		p = newPairing(q, protocol.Endpoint{GID: q.attr.AV.DGID, QPN: q.attr.DestQPN})
		q.pairing = p
	}
	switch {
	case to == stateSQD && from != stateSQD && attr.EnSQDAsyncNotify && mask&verbs.QPAttrEnSQDNotify != 0:
		q.attr.EnSQDAsyncNotify = true
		q.noteDrained()
	case to == stateRTS:
		q.drive()
	}
	q.unlock()
	if p != nil {
		p.start()
	}
	return nil
}

func (q *qp) checkAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	switch {
	case mask&verbs.QPAttrPort != 0 && attr.Port != 1:
		return fmt.Errorf("%w: port %d, there is only 1", verbs.ErrInvalid, attr.Port)
	case mask&verbs.QPAttrPKeyIndex != 0 && attr.PKeyIndex != 0, mask&verbs.QPAttrAltPath != 0 && attr.AltPKeyIndex != 0:
		return errPKeyIndex
	case mask&verbs.QPAttrAV != 0 && attr.AV.DGID == verbs.GID{}:
		return fmt.Errorf("%w: address vector without a destination GID", verbs.ErrInvalid)
	}
	return nil
}

var errPKeyIndex = fmt.Errorf("%w: there is only one P_Key, of index 0", verbs.ErrInvalid)

func (q *qp) setAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	set := func(bit verbs.QPAttrMask, assign func()) {
		if mask&bit != 0 {
			assign()
		}
	}
	a := &q.attr
	set(verbs.QPAttrAccess, func() { a.Access = attr.Access })
	set(verbs.QPAttrPKeyIndex, func() { a.PKeyIndex = attr.PKeyIndex })
	set(verbs.QPAttrPort, func() { a.Port = attr.Port })
	set(verbs.QPAttrAV, func() { a.AV = attr.AV })
	set(verbs.QPAttrAltPath, func() {
		a.AltAV, a.AltPKeyIndex, a.AltPort, a.AltTimeout = attr.AltAV, attr.AltPKeyIndex, attr.AltPort, attr.AltTimeout
	})
	set(verbs.QPAttrPathMTU, func() { a.PathMTU = attr.PathMTU })
	set(verbs.QPAttrTimeout, func() { a.Timeout = attr.Timeout })
	set(verbs.QPAttrRetryCount, func() { a.RetryCount = attr.RetryCount })
	set(verbs.QPAttrRNRRetry, func() { a.RNRRetry = attr.RNRRetry })
	set(verbs.QPAttrRQPSN, func() { a.RQPSN = attr.RQPSN })
	set(verbs.QPAttrSQPSN, func() { a.SQPSN = attr.SQPSN })
	set(verbs.QPAttrMaxRdAtomic, func() { a.MaxRdAtomic = attr.MaxRdAtomic })
	set(verbs.QPAttrMaxDestRdAtomic, func() { a.MaxDestRdAtomic = attr.MaxDestRdAtomic })
	set(verbs.QPAttrMinRNRTimer, func() { a.MinRNRTimer = attr.MinRNRTimer })
	set(verbs.QPAttrPathMigState, func() { a.PathMigState = attr.PathMigState })
	set(verbs.QPAttrDestQPN, func() { a.DestQPN = attr.DestQPN })
	set(verbs.QPAttrQKey, func() { a.QKey = attr.QKey })
}

// drained reports whether nothing that was begun is unfinished.
func (q *qp) drained() bool { return q.acks.n == 0 && !q.sq.begun }

// noteDrained raises SQ_DRAINED once that is so.
func (q *qp) noteDrained() {
	if q.state.Load() == stateSQD && q.attr.EnSQDAsyncNotify && q.drained() {
		q.attr.EnSQDAsyncNotify = false
		q.dev.raise(verbs.DriverEvent{Type: verbs.EventSQDrained, QPN: q.num})
	}
}

// failure says why a QP goes to ERR and who learns what.
type failure struct {
	send      verbs.WCStatus     // for the oldest outstanding send request; 0: it is flushed
	recv      verbs.WCStatus     // for the oldest receive; 0: it is flushed
	tell      protocol.FaultKind // what the peer learns
	peerKnows bool               // the peer learns nothing, it told us
	event     verbs.EventType
	raise     bool // raise event
}

// fail moves the QP to ERR. It does nothing if it is there or in RESET.
func (q *qp) fail(f failure) {
	q.sendMu.Lock()
	q.failLocked(f)
	q.unlock()
}

// failFor is fail for what was found in in, unless the QP has been through RESET since.
func (q *qp) failFor(in *inbound) {
	q.sendMu.Lock()
	if q.in == in {
		q.failLocked(in.cause)
	}
	q.unlock()
}

// failLocked does what belongs under sendMu: from here on the peer finds the
// gate shut, and what is queued is flushed in order. The rest is for unlock.
func (q *qp) failLocked(f failure) {
	if q.destroyed.Load() {
		return
	}
	if q.state.Load() == stateReset || q.in.flushing.Load() {
		return
	}
	q.out.publish()
	q.setState(stateErr)
	q.stopTimer()
	q.flushSends(f.send)
	q.in.flushStatus.Store(uint32(f.recv))
	q.in.flushing.Store(true)
	q.in.wantAttention()
	q.pending, q.after = true, f
}

// losePeer takes the end of the peer, or of the pairing with it, or what it complains
// of. A QP of the unreliable connection service goes on, and what it sends is lost.
// sendMu is held.
func (q *qp) losePeer(f failure) {
	if !q.uc {
		q.failLocked(f)
		return
	}
	q.alone, q.open = true, false
	if q.in.ready() { // the peer may have died when it had taken our event, and before it gave it
		q.recvCQ.notify(true)
	}
	q.drive()
}

// unlock ends what sendMu.Lock began, and then does what must not be done under it.
func (q *qp) unlock() {
	work := q.takeWork()
	q.sendMu.Unlock()
	q.do(work)
}

// end is unlock for what sendMu.Begin began.
func (q *qp) end() {
	work := q.takeWork()
	q.sendMu.End()
	q.do(work)
}

// work is what must not be done under sendMu.
type work struct {
	gone   []*remote // to be unmapped
	failed bool      // the QP has gone to ERR
	after  failure   // for this
	link   link
}

func (q *qp) takeWork() work {
	w := work{gone: q.gone, failed: q.pending, after: q.after, link: q.link}
	q.gone, q.pending = nil, false
	return w
}

func (q *qp) do(w work) {
	defer closeRemotes(w.gone)
	if !w.failed {
		return
	}
	q.recvCQ.notify(true)
	if w.link != nil && !w.after.peerKnows {
		w.link.tell(w.after.tell)
	}
	if w.after.raise {
		q.dev.raise(verbs.DriverEvent{Type: w.after.event, QPN: q.num})
	}
	if q.srq != nil {
		q.dev.raise(verbs.DriverEvent{Type: verbs.EventLastWQEReached, QPN: q.num})
	}
}

// Where the two ends of a pair run decides whether spinning pays. These
// methods are for callers that know the provider; they find them by an
// interface assertion on verbs.QP.Driver.

// PublishCPU tells the peer on which CPU we run; a negative number says that
// we do not know. It costs a store if that has changed, and a load if not.
func (q *qp) PublishCPU(cpu int) { q.cpus.publish(cpu, 0, ownCPU) }

// PeerCPU returns the CPU that the peer published last; ok is false if it has
// not, or there is no peer. The number is the peer's claim: do not index with
// it unchecked.
func (q *qp) PeerCPU() (cpu int, ok bool) {
	cpu, _, ok = q.cpus.ofPeer(ownCPU)
	return cpu, ok
}

// AskCPU asks the peer to run on that CPU, as we do; a negative number takes
// that back. Of turn it sees the low 15 bits.
func (q *qp) AskCPU(cpu, turn int) { q.cpus.publish(cpu, turn, askedCPU) }

// AskedCPU returns the CPU on which the peer asks us to run; ok is false if it
// does not. As with PeerCPU, the number may be any.
func (q *qp) AskedCPU() (cpu, turn int, ok bool) { return q.cpus.ofPeer(askedCPU) }

// cpuWords are where the two ends say on which CPUs they run. They have a lock of their own:
// sendMu and recvMu may cost microseconds whoever does not post. It comes after these.
type cpuWords struct {
	mu    sync.Mutex
	own   *protocol.CPUs // guarded by mu: in our segment, nil once destroyed
	peers *protocol.CPUs // guarded by mu: in the peer's segment, nil if the QP is not paired
}

func ownCPU(c *protocol.CPUs) *atomic.Uint32 { return &c.Own }

func askedCPU(c *protocol.CPUs) *atomic.Uint32 { return &c.Asked }

func (c *cpuWords) set(own, peers *protocol.CPUs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own, c.peers = own, peers
}

func (c *cpuWords) publish(cpu, turn int, word func(*protocol.CPUs) *atomic.Uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		return
	}
	if next, own := uint32(max(cpu, -1)+1)|uint32(turn)<<cpuBits, word(c.own); own.Load() != next {
		own.Store(next)
	}
}

func (c *cpuWords) ofPeer(word func(*protocol.CPUs) *atomic.Uint32) (cpu, turn int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peers == nil {
		return 0, 0, false
	}
	n := word(c.peers).Load()
	cpu, turn = int(n&(1<<cpuBits-1))-1, int(n>>cpuBits)
	return cpu, turn, cpu >= 0 && cpu < maxCPU
}

// maxCPU is more than any machine has.
const maxCPU = 1 << 16

// cpuBits are those of a word of protocol.CPUs that say the CPU.
const cpuBits = 17

// PeerPID returns the process id of the peer, 0 if it is not paired yet or
// lives in a PID namespace that we cannot see.
func (q *qp) PeerPID() int {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.link == nil {
		return 0
	}
	return q.link.pid()
}

// HasArrival reports whether a poll of the CQ for what is received would find something.
func (q *qp) HasArrival() bool { return q.recvCQ.hasSome() }

// IsLocal reports whether a GID is that of a device of this process.
func (q *qp) IsLocal(gid verbs.GID) bool { return deviceOf(gid) != nil }

// PeerIsLocal reports whether the peer is in this process.
func (q *qp) PeerIsLocal() bool {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	return q.out.seg != nil
}
