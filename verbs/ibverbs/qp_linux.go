//go:build amd64 || arm64

package ibverbs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/multicast"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// qp is a queue pair.
type qp struct {
	dev     *device
	pd      *pd
	domain  threadDomain // if it is SingleThreaded, and the driver has any
	address uintptr      // struct ibv_qp
	num     uint32
	typ     verbs.QPType
	sendCQ  *cq
	recvCQ  *cq
	srq     *srq // nil: it has a receive queue

	sendLimit, recvLimit int // requests that the queues take
	signalAll            bool

	// state is what the last transition that we know of has led to. The
	// device takes a QP to ERR by itself; failed says that it was seen.
	state  atomic.Uint32
	failed atomic.Bool
	// sendDone and recvDone count completions that were polled without
	// error; those who post compare them with what they have posted.
	sendDone, recvDone atomic.Uint64

	// life is held for reading by whoever names the QP in a call, but for those who post, and
	// for writing, with the send and the receive lock, by who destroys it.
	life   sync.RWMutex
	gone   bool       // guarded by life, and by the locks of both queues
	modify sync.Mutex // orders transitions

	send, recv queue
	marks      marking
	groups     multicast.Groups
	resets     atomic.Uint32 // how often the queues were emptied, for good in the end
}

// queue is what posting to one of the queues needs.
type queue struct {
	sync.Mutex
	posted uint64 // guarded by the mutex: requests that will give a completion to the caller
	room   arena  // guarded by the mutex
}

func (p *pd) CreateQP(attr *verbs.QPInitAttr, send, recv verbs.CQDriver, shared verbs.SRQDriver) (verbs.QPDriver, error) {
	q := &qp{dev: p.dev, pd: p, typ: attr.Type, signalAll: attr.SignalAll}
	var ok bool
	if q.sendCQ, ok = send.(*cq); !ok || q.sendCQ.dev != p.dev {
		return nil, fmt.Errorf("%w: send CQ of another device", verbs.ErrInvalid)
	}
	if q.recvCQ, ok = recv.(*cq); !ok || q.recvCQ.dev != p.dev {
		return nil, fmt.Errorf("%w: receive CQ of another device", verbs.ErrInvalid)
	}
	if shared != nil {
		if q.srq, ok = shared.(*srq); !ok || q.srq.dev != p.dev {
			return nil, fmt.Errorf("%w: SRQ of another device", verbs.ErrInvalid)
		}
	}
	if err := p.dev.during(func() error { return q.create(attr) }); err != nil {
		return nil, err
	}
	return q, nil
}

// parts are what the QP is made of.
func (q *qp) parts() []*lifetime {
	list := []*lifetime{&q.pd.life, &q.sendCQ.life, &q.recvCQ.life}
	if q.srq != nil {
		list = append(list, &q.srq.life)
	}
	return list
}

func (q *qp) create(attr *verbs.QPInitAttr) (err error) {
	if err := useAll(q.parts()...); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			q.send.room.free()
			q.recv.room.free()
			q.domain.free(q.dev)
			releaseAll(q.parts()...)
		}
	}()
	pd := q.pd.address
	if attr.SingleThreaded {
		if q.domain = q.pd.allocThreadDomain(); q.domain.parent != 0 {
			pd = q.domain.parent
		}
	}
	c := &attr.Cap
	in := &ibvQPInitAttr{
		sendCQ: q.sendCQ.address, recvCQ: q.recvCQ.address, qpType: int32(attr.Type), sqSigAll: int32(flag(attr.SignalAll)),
		cap: ibvQPCap{
			maxSendWR: uint32(max(c.MaxSendWR, 1)), maxRecvWR: uint32(c.MaxRecvWR),
			maxSendSGE: uint32(max(c.MaxSendSGE, 1)), maxRecvSGE: uint32(c.MaxRecvSGE), maxInline: uint32(c.MaxInline),
		},
	}
	if q.srq != nil {
		in.srq, in.cap.maxRecvWR, in.cap.maxRecvSGE = q.srq.address, 0, 0
	}
	if q.typ == verbs.QPTypeXRCInitiator {
		in.recvCQ = 0
	}
	q.address, err = q.dev.numbered(func() (uintptr, error) { return handle(q.dev.lib.createQP, pd, uintptr(unsafe.Pointer(in))) })
	if err != nil {
		return failed("ibv_create_qp", err)
	}
	v := view[ibvQP](q.address)
	q.num = v.qpNum
	*c = verbs.QPCap{
		MaxSendWR: int(in.cap.maxSendWR), MaxRecvWR: int(in.cap.maxRecvWR), MaxSendSGE: int(in.cap.maxSendSGE),
		MaxRecvSGE: int(in.cap.maxRecvSGE), MaxInline: int(in.cap.maxInline),
	}
	q.sendLimit, q.recvLimit = c.MaxSendWR, c.MaxRecvWR
	if v.context != q.dev.context || v.pd != pd || v.sendCQ != q.sendCQ.address || v.qpType != in.qpType || v.qpNum >= 1<<24 {
		err = unknownLayout("ibv_qp")
	}
	if err == nil {
		q.send.room, err = newArena(sendBytes(c.MaxSendSGE, c.MaxInline))
	}
	if err == nil {
		q.recv.room, err = newArena(recvBytes(c.MaxRecvSGE))
	}
	if err != nil {
		number(q.dev.lib.destroyQP, q.address)
		return err
	}
	q.marks.spare = !q.advances() && q.sendCQ.borrow()
	q.sendCQ.attach(q)
	q.recvCQ.attach(q)
	q.dev.add(q.address, q)
	return nil
}

func (q *qp) Num() uint32 { return q.num }

// use runs calls that name the QP.
func (q *qp) use(f func() error) error {
	return q.dev.during(func() error {
		q.life.RLock()
		defer q.life.RUnlock()
		if q.gone {
			return verbs.ErrClosed
		}
		return f()
	})
}

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	return q.use(func() error {
		q.modify.Lock()
		defer q.modify.Unlock()
		from := verbs.QPState(q.state.Load())
		to := from
		if mask&verbs.QPAttrState != 0 {
			to = attr.State
		}
		if q.dev.entry.Transport == verbs.TransportIWARP {
			if err := iwarpTransition(from, to); err != nil {
				return err
			}
		}
		if to == verbs.QPStateReset {
			q.setState(to) // nothing is posted from now on
		}
		in := qpAttr(attr)
		if err := q.transit(to, &in, mask); err != nil {
			q.setState(from)
			return failed("ibv_modify_qp", err)
		}
		q.enter(to)
		return nil
	})
}

// transit has the library modify the QP. For RESET it takes the completions of the QP out of its
// CQs, without a lock of those that are SingleThreaded: nobody polls meanwhile.
func (q *qp) transit(to verbs.QPState, attr *ibvQPAttr, mask verbs.QPAttrMask) error {
	if to == verbs.QPStateReset {
		defer lockAll(q.sendCQ, q.recvCQ)()
	}
	return status(q.dev.lib.modifyQP, q.address, uintptr(unsafe.Pointer(attr)), uintptr(mask))
}

// setState waits for those who post: none of them publishes requests for a
// state that is over, which would be executed on the next connection.
func (q *qp) setState(state verbs.QPState) {
	q.lock()
	defer q.unlock()
	q.state.Store(uint32(state))
}

// enter is called when a transition was made. The caller holds life for reading, and
// modify.
func (q *qp) enter(state verbs.QPState) {
	switch state {
	case verbs.QPStateReset:
		q.empty()
	case verbs.QPStateErr:
		q.failed.Store(true)
		q.flushAlive() // receives that came between the transition and failed
	}
	q.setState(state)
}

// Entered is called by the connection manager when the kernel has moved the
// QP without us.
func (q *qp) Entered(state verbs.QPState) {
	_ = q.use(func() error { // nobody asks for the state of a QP that is gone
		q.modify.Lock()
		defer q.modify.Unlock()
		q.enter(state)
		return nil
	})
}

func (q *qp) lock() {
	q.send.Lock()
	q.recv.Lock()
}

func (q *qp) unlock() {
	q.recv.Unlock()
	q.send.Unlock()
}

// empty forgets what was posted before RESET, and its completions.
func (q *qp) empty() {
	q.lock()
	defer q.unlock()
	defer lockAll(q.sendCQ, q.recvCQ)()
	q.sendCQ.purge(q)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.purge(q)
	}
	q.send.posted, q.recv.posted = 0, 0
	q.marks.reset()
	q.resets.Add(1)
	q.sendDone.Store(0)
	q.recvDone.Store(0)
	q.failed.Store(false)
}

// iwarpTransition says which transitions of an iWARP QP are the caller's: into
// INIT, and into ERR. The others the kernel's connection manager makes, and
// there is no way back to RESET (RFC 5040 and 5041 have no such states).
func iwarpTransition(from, to verbs.QPState) error {
	switch {
	case to == from, to == verbs.QPStateInit && from == verbs.QPStateReset, to == verbs.QPStateErr && from != verbs.QPStateReset:
		return nil
	case to == verbs.QPStateErr:
		return fmt.Errorf("%w: a QP in %v cannot fail", verbs.ErrInvalid, from)
	}
	return fmt.Errorf("%w: an iWARP QP goes from %v to %v by its connection manager only", verbs.ErrUnsupported, from, to)
}

// flush makes rxe look at the receives of a QP in ERR: it has no doorbell for them, and does
// when the QP is taken to ERR once more.
func (q *qp) flush() {
	_ = q.use(func() error { // one that is gone has nothing to flush
		q.modify.Lock() // ends with the transition that runs
		defer q.modify.Unlock()
		if q.failed.Load() { // RESET has not come before
			q.flushAlive()
		}
		return nil
	})
}

// flushAlive is flush for who holds life and modify. Other drivers have nothing to be told.
func (q *qp) flushAlive() {
	if q.dev.entry.DriverID != rdmahost.DriverRXE {
		return
	}
	in := ibvQPAttr{qpState: int32(verbs.QPStateErr)}
	// a QP that cannot has nothing to flush
	_ = status(q.dev.lib.modifyQP, q.address, uintptr(unsafe.Pointer(&in)), uintptr(verbs.QPAttrState))
}

// advances reports whether the kernel frees the slots of requests as it does them, which rxe
// has.
func (q *qp) advances() bool { return q.dev.entry.DriverID == rdmahost.DriverRXE }

// queryMask asks for everything.
const queryMask = 1<<21 - 1

func (q *qp) Query() (attr verbs.QPAttr, err error) {
	err = q.use(func() (err error) {
		if attr, err = q.query(); err != nil {
			return err
		}
		if q.dev.entry.Transport == verbs.TransportIWARP {
			// Not all drivers tell of what the kernel has done.
			if attr.State != verbs.QPStateErr {
				attr.State = verbs.QPState(q.state.Load())
			}
			if q.failed.Load() {
				attr.State = verbs.QPStateErr
			}
		}
		attr.Cap.MaxSendWR, attr.Cap.MaxRecvWR = q.sendLimit, q.recvLimit
		return nil
	})
	return attr, err
}

// query asks the kernel. The caller holds life.
func (q *qp) query() (verbs.QPAttr, error) {
	out, init := new(ibvQPAttr), new(ibvQPInitAttr)
	err := status(q.dev.lib.queryQP, q.address, uintptr(unsafe.Pointer(out)), queryMask, uintptr(unsafe.Pointer(init)))
	return attrOf(out), failed("ibv_query_qp", err)
}

// failedByEvent is called when an event says that the QP is in ERR. One that is read late may be of
// before RESET: the kernel has to say that it is there now. On iWARP there is no way back.
func (q *qp) failedByEvent() {
	_ = q.use(func() error { // nobody asks for the state of a QP that is gone
		q.modify.Lock() // ends with the transition that runs
		defer q.modify.Unlock()
		if q.dev.entry.Transport != verbs.TransportIWARP {
			if attr, err := q.query(); err != nil || attr.State != verbs.QPStateErr {
				return err
			}
		}
		q.failed.Store(true)
		q.flushAlive() // receives that came between the error and failed
		return nil
	})
}

// qpAttr translates attributes. The library looks only at what the mask names.
func qpAttr(a *verbs.QPAttr) ibvQPAttr {
	return ibvQPAttr{
		qpState: int32(a.State), curQPState: int32(a.CurState), pathMTU: int32(a.PathMTU), pathMigState: int32(a.PathMigState),
		qkey: a.QKey, rqPSN: a.RQPSN, sqPSN: a.SQPSN, destQPNum: a.DestQPN, accessFlags: uint32(a.Access),
		ah: ahAttr(&a.AV), altAH: ahAttr(&a.AltAV), pkeyIndex: a.PKeyIndex, altPKeyIndex: a.AltPKeyIndex,
		enSQDAsyncNotify: flag(a.EnSQDAsyncNotify), maxRdAtomic: a.MaxRdAtomic, maxDestRdAtomic: a.MaxDestRdAtomic,
		minRNRTimer: a.MinRNRTimer, portNum: a.Port, timeout: a.Timeout, retryCnt: a.RetryCount, rnrRetry: a.RNRRetry,
		altPortNum: a.AltPort, altTimeout: a.AltTimeout,
	}
}

func attrOf(q *ibvQPAttr) verbs.QPAttr {
	return verbs.QPAttr{
		State: verbs.QPState(q.qpState), CurState: verbs.QPState(q.curQPState), Access: verbs.Access(q.accessFlags),
		PKeyIndex: q.pkeyIndex, Port: q.portNum, QKey: q.qkey, AV: addressVector(&q.ah), AltAV: addressVector(&q.altAH),
		AltPKeyIndex: q.altPKeyIndex, AltPort: q.altPortNum, AltTimeout: q.altTimeout, PathMTU: verbs.MTU(q.pathMTU),
		Timeout: q.timeout, RetryCount: q.retryCnt, RNRRetry: q.rnrRetry, RQPSN: q.rqPSN, SQPSN: q.sqPSN,
		MaxRdAtomic: q.maxRdAtomic, MaxDestRdAtomic: q.maxDestRdAtomic, MinRNRTimer: q.minRNRTimer,
		PathMigState: uint8(q.pathMigState), SQDraining: q.sqDraining != 0, DestQPN: q.destQPNum,
		Cap: verbs.QPCap{
			MaxSendWR: int(q.cap.maxSendWR), MaxRecvWR: int(q.cap.maxRecvWR), MaxSendSGE: int(q.cap.maxSendSGE),
			MaxRecvSGE: int(q.cap.maxRecvSGE), MaxInline: int(q.cap.maxInline),
		},
	}
}

// Destroy destroys the QP and drops its completions. It waits for the calls
// about the QP that run.
func (q *qp) Destroy() error { return q.dev.during(q.destroy) }

func (q *qp) rank() int { return rankQP }

func (q *qp) destroy() error {
	q.life.Lock() // ends with the calls that run
	defer q.life.Unlock()
	if q.gone {
		return verbs.ErrClosed
	}
	q.lock()
	defer q.unlock()
	// Another QP that gets the number cannot report to the CQs before the completions of
	// this one are out of them.
	defer lockAll(q.sendCQ, q.recvCQ)()
	stays := false
	err := q.groups.Destroy(q.attach, q.detach, func() error {
		q.dev.drop(q.address)
		err := failed("ibv_destroy_qp", status(q.dev.lib.destroyQP, q.address))
		stays = q.dev.restore(q.address, q, err) // events are about it again
		return err
	})
	if stays {
		return err
	}
	q.gone = true
	q.resets.Add(1)
	for _, c := range []*cq{q.sendCQ, q.recvCQ} {
		c.purge(q)
		if c.qps[q.num] == q {
			delete(c.qps, q.num)
			c.last = nil
		}
	}
	q.send.room.free()
	q.recv.room.free()
	q.marks.giveBack(q.sendCQ)
	q.domain.free(q.dev)
	releaseAll(q.parts()...)
	return err
}

func (q *qp) abandon() {
	q.life.Lock()
	defer q.life.Unlock()
	q.lock()
	defer q.unlock()
	q.gone = true
	q.send.room.free()
	q.recv.room.free()
}
