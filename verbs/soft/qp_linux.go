package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// qp is a reliable connected queue pair. Its send half (this file,
// post_linux.go, attempt_linux.go, sendqueue_linux.go) works on the peer's
// segment, its receive half (inbound) on our own.
type qp struct {
	sendMu sync.Mutex
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
	asked    map[uint32]struct{} // keys that the peer was asked for
	refused  map[uint32]error    // keys that it refused, until they are reported
	gone     []*remote           // to be unmapped when sendMu is released
	sq       sendQueue
	acks     ackQueue
	timer    *time.Timer
	due      time.Time // of the timer
	attr     verbs.QPAttr
	link     link
	pairing  *pairing // in progress; a failure does not end it, for the peer is to hear of that
	pending  bool     // after is to be dealt with when sendMu is released
	after    failure  // what moved the QP to ERR
	posts    int64    // counted while faults are injected

	// state is a verbs.QPState, written under sendMu and recvMu.
	state atomic.Uint32

	dev    *device
	pd     *pd
	num    uint32
	cap    verbs.QPCap
	sendCQ *cq
	recvCQ *cq
	srq    *srq

	recvMu sync.Mutex
	in     *inbound // replaced by RESET under sendMu and recvMu, nil once destroyed

	life      sync.Mutex // one RESET or Destroy at a time; outermost
	destroyed atomic.Bool
}

const (
	stateReset = uint32(verbs.QPStateReset)
	stateInit  = uint32(verbs.QPStateInit)
	stateRTR   = uint32(verbs.QPStateRTR)
	stateRTS   = uint32(verbs.QPStateRTS)
	stateSQD   = uint32(verbs.QPStateSQD)
	stateErr   = uint32(verbs.QPStateErr)
)

func (p *pd) CreateQP(attr *verbs.QPInitAttr, send, recv verbs.CQDriver, s verbs.SRQDriver) (verbs.QPDriver, error) {
	if attr.Type != verbs.QPTypeRC {
		return nil, verbs.ErrUnsupported
	}
	q := &qp{dev: p.dev, pd: p, sendCQ: send.(*cq), recvCQ: recv.(*cq)}
	q.cap = attr.Cap
	q.cap.MaxSendWR = max(q.cap.MaxSendWR, 1)
	if attr.SignalAll {
		q.always = verbs.SendSignaled
	}
	if s != nil {
		q.srq = s.(*srq)
		q.cap.MaxRecvWR = 0
		if q.srq.pd != p {
			return nil, fmt.Errorf("%w: SRQ of another PD", verbs.ErrInvalid)
		}
	}
	q.out.bell = -1
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
	seg, err := q.dev.newSegment(geometryFor(n))
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
	g := uint32(q.attr.MinRNRTimer&31) << gateRNR
	if q.attr.Access&verbs.AccessRemoteWrite != 0 {
		g |= gateWrite
	}
	if q.attr.Access&verbs.AccessRemoteRead != 0 {
		g |= gateRead
	}
	if q.attr.Access&verbs.AccessRemoteAtomic != 0 {
		g |= gateAtomic
	}
	switch q.state.Load() {
	case stateRTR, stateRTS, stateSQD:
		g |= gateOpen
	case stateErr:
		g |= gateFailed
	}
	q.in.seg.hdr.gate.Store(g)
}

// mayRun reports whether posts may take the fast path.
func (q *qp) mayRun() bool {
	return q.state.Load() == stateRTS && q.link != nil && q.sq.n == 0 && q.acks.n == 0 &&
		!q.out.srq && q.dev.faults.Load() == nil
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
	q.sendCQ.local.purge(q.sendCQ, q)
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
	q.in.seg.hdr.gate.Store(gateFailed)
	p, l := q.pairing, q.link
	q.pairing, q.link = nil, nil
	q.out.close()
	q.forgetRemotes()
	q.sq.clear()
	q.acks.clear()
	q.stopTimer()
	q.open = false
	q.recvMu.Lock()
	q.state.Store(stateReset)
	old := replace()
	q.recvMu.Unlock()
	q.sendMu.Unlock()
	if p != nil {
		p.stop()
		p.wait() // ends because its socket is closed
	}
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
	q.sendCQ.local.purge(q.sendCQ, q)
	in.seg.release()
	// Not earlier: as long as a post may run, quiesce has to find the QP.
	q.dev.removeQP(q)
	q.endUse()
	return nil
}
