package uverbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/multicast"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// qp is a queue pair.
type qp struct {
	dev    *device
	id     uint64
	num    uint32
	handle uint32
	sendCQ *cq
	recvCQ *cq
	srq    *srq // nil: it has a receive queue
	rc     bool // the service is reliable

	queue                driver.QP          // also of send and recv, who look whether it is there
	unflushed            driver.UnflushedQP // queue, or nil if the kernel flushes all requests
	refusing             driver.RefusingQP  // queue, or nil if a doorbell is refused for errors alone
	managed              driver.ManagedQP   // queue, or nil if the program moves the QP from state to state
	ownDoorbell          driver.DoorbellQP  // queue, or nil if the kernel has the doorbell
	sendLimit, recvLimit int                // requests that the queues take
	signalAll            bool

	// state is what the last transition that we know of has led to. The
	// kernel takes a QP to ERR by itself; failed says that it was seen.
	state  atomic.Uint32
	failed atomic.Bool
	// suspect: a completion that was counted shows that it has failed, and nobody has looked
	// after it. RESET takes that back.
	suspect atomic.Bool
	// sendDone and recvDone count completions that were polled without
	// error; those who post compare them with what they have posted.
	sendDone, recvDone serial.Word // free running: written by who polls
	// errorsBefore is how many completions with an error, of requests from before the last
	// restart, are to be polled. They count too. Guarded by sendCQ.mu.
	errorsBefore int

	// life is held for reading by whoever names the QP in a command, but for
	// the doorbell, which is rung under the send lock; and for writing, with the
	// send and the receive lock, by the command that destroys it: the kernel
	// may give its handle to the next QP at once.
	life   sync.RWMutex
	gone   bool       // guarded by life: destroyed
	modify sync.Mutex // orders transitions

	groups multicast.Groups
	resets atomic.Uint32 // how often the queues were emptied, for good in the end

	send struct {
		serial.Section
		queue    driver.QP           // guarded by the section, nil once destroyed
		posted   uint32              // guarded by the section, free running: requests that will give a completion
		taken    []taken             // guarded by the section: windows that the requests of a post bind
		doorbell abi.PreparedCommand // guarded by the section
	}
	recv struct {
		serial.Section
		queue  driver.QP // guarded by the section, nil once destroyed
		posted uint32    // guarded by the section, free running
	}
}

func (p *pd) CreateQP(attr *verbs.QPInitAttr, send, recv verbs.CQDriver, shared verbs.SRQDriver) (verbs.QPDriver, error) {
	q := &qp{dev: p.dev, signalAll: attr.SignalAll, rc: attr.Type == verbs.QPTypeRC || attr.Type == verbs.QPTypeXRCInitiator}
	if attr.SingleThreaded {
		q.send.Promise()
		q.recv.Promise()
	}
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
	var err error
	if q.id, err = p.dev.add(q); err != nil {
		return nil, err
	}
	if err := q.createOn(p, attr); err != nil {
		p.dev.drop(q.id)
		return nil, err
	}
	return q, nil
}

// createOn makes the QP while what it is made of stays.
func (q *qp) createOn(p *pd, attr *verbs.QPInitAttr) error {
	parts := []*ending{&p.end, &q.sendCQ.end, &q.recvCQ.end}
	if q.srq != nil {
		parts = append(parts, &q.srq.end)
	}
	return useAll(parts, func() error {
		if err := q.create(p, attr); err != nil {
			return err
		}
		q.dev.numbers.await(q.num)
		q.sendCQ.attach(q)
		q.recvCQ.attach(q)
		return nil
	})
}

func (q *qp) create(p *pd, attr *verbs.QPInitAttr) error {
	q.life.Lock() // Close of the device must not look at it half made
	defer q.life.Unlock()
	q.lock()
	defer q.unlock()
	in := abi.CreateQPIn{
		UserHandle: q.id, PDHandle: p.handle, SendCQ: q.sendCQ.handle, RecvCQ: q.recvCQ.handle,
		MaxSendWR: uint32(max(attr.Cap.MaxSendWR, 1)), MaxRecvWR: uint32(attr.Cap.MaxRecvWR),
		// Inline data lies where the SGEs do: rxe wants room for one then.
		MaxSendSGE: uint32(max(attr.Cap.MaxSendSGE, 1)), MaxRecvSGE: uint32(attr.Cap.MaxRecvSGE),
		MaxInline: uint32(attr.Cap.MaxInline), SQSigAll: flag(attr.SignalAll), QPType: uint8(attr.Type),
	}
	if q.srq != nil {
		in.SRQHandle, in.IsSRQ, in.MaxRecvWR, in.MaxRecvSGE = q.srq.handle, 1, 0, 0
	}
	init := driver.QPAttr{Type: attr.Type, Cap: attr.Cap, SignalAll: attr.SignalAll, SendCQ: q.sendCQ.mapped()}
	if q.srq != nil {
		init.SRQ = q.srq.mapped()
	}
	made := false
	queue, err := q.dev.driver.CreateQP(&init, func(u driver.Udata) (driver.CreatedQP, error) {
		var out abi.CreateQPOut
		if err := q.dev.commandUdata(abi.CmdCreateQP, abi.BytesOf(&in), abi.BytesOf(&out), u); err != nil {
			return driver.CreatedQP{}, err
		}
		q.handle, q.num, made = out.Handle, out.QPN, true
		attr.Cap = verbs.QPCap{
			MaxSendWR: int(int32(out.MaxSendWR)), MaxRecvWR: int(int32(out.MaxRecvWR)), MaxSendSGE: int(int32(out.MaxSendSGE)),
			MaxRecvSGE: int(int32(out.MaxRecvSGE)), MaxInline: int(int32(out.MaxInline)),
		}
		return driver.CreatedQP{Num: q.num, Cap: attr.Cap}, nil
	})
	if err == nil {
		q.queue, q.send.queue, q.recv.queue = queue, queue, queue
		q.unflushed, _ = queue.(driver.UnflushedQP)
		q.refusing, _ = queue.(driver.RefusingQP)
		q.managed, _ = queue.(driver.ManagedQP)
		q.ownDoorbell, _ = queue.(driver.DoorbellQP)
	}
	if err == nil && q.ownDoorbell == nil {
		q.send.doorbell, err = q.dev.file.Prepare(abi.CmdPostSend, abi.BytesOf(&abi.PostSendIn{Handle: q.handle, WQESize: abi.SendWRSize}), true)
	}
	if err != nil {
		if made {
			q.dev.undo(q, q.destroyAtKernel, q.release)
		}
		return err
	}
	q.sendLimit, q.recvLimit = queue.Capacity()
	attr.Cap.MaxSendWR, attr.Cap.MaxRecvWR = q.sendLimit, q.recvLimit
	return nil
}

func (q *qp) destroyAtKernel() error {
	return q.dev.command(abi.CmdDestroyQP, abi.BytesOf(&abi.DestroyIn{Handle: q.handle}), abi.BytesOf(&abi.DestroyQPOut{}))
}

func (q *qp) lock() {
	q.send.Lock()
	q.recv.Lock()
}

func (q *qp) unlock() {
	q.recv.Unlock()
	q.send.Unlock()
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.life.RLock()
	defer q.life.RUnlock()
	if q.gone {
		return verbs.ErrClosed
	}
	q.modify.Lock()
	defer q.modify.Unlock()
	from := verbs.QPState(q.state.Load())
	to := from
	if mask&verbs.QPAttrState != 0 {
		to = attr.State
	}
	if q.managed != nil {
		if err := q.managed.MayModify(from, to); err != nil {
			return err
		}
	}
	if to == verbs.QPStateReset {
		q.setState(to) // nothing is posted from now on
	}
	in := modifyQP(attr, mask)
	in.Handle = q.handle
	change := func() error { return q.dev.command(abi.CmdModifyQP, abi.BytesOf(&in), nil) }
	err := error(nil)
	if to == verbs.QPStateRTS && q.knowsSQE() {
		err = q.restart(change)
	} else {
		err = change()
	}
	if err != nil {
		q.setState(from)
		if from == verbs.QPStateRTS {
			q.resume() // a doorbell that was rung meanwhile may have been refused
		}
		return err
	}
	q.enter(to)
	return nil
}

// setState waits for those who post: none of them publishes requests for a
// state that is over, which would be executed on the next connection.
func (q *qp) setState(state verbs.QPState) {
	q.lock()
	defer q.unlock()
	q.state.Store(uint32(state))
}

// enter is called when the kernel has made a transition. The caller holds
// life for reading, and modify.
func (q *qp) enter(state verbs.QPState) {
	switch state {
	case verbs.QPStateReset:
		q.empty()
	case verbs.QPStateRTS:
		q.setState(state)
		q.resume()
	case verbs.QPStateErr:
		q.failed.Store(true)
		if q.ownDoorbell == nil {
			q.flushAlive() // of receives that came between the command and failed nobody has told the kernel
		}
	}
	q.setState(state)
}

// knowsSQE reports whether a request that fails takes the QP to SQE, which it leaves by Modify.
// That is so with hardware; rxe takes QPs that are not reliable to ERR.
func (q *qp) knowsSQE() bool { return !q.rc && q.ownDoorbell != nil }

// restart takes the QP to RTS. If it comes from SQE, everything that was posted completes, if need
// be with an error, and what was polled already holds no slot any more.
func (q *qp) restart(change func() error) error {
	q.send.Lock() // nothing is posted between the transition and the count
	defer q.send.Unlock()
	attr, err := q.query()
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	if attr.State == verbs.QPStateSQE {
		q.sendCQ.restart(q, q.send.posted)
	}
	return nil
}

// empty forgets what was posted before RESET, and its completions. These first:
// whoever polls counts them, and looks in the queues for what they are of.
func (q *qp) empty() {
	q.lock()
	defer q.unlock()
	q.sendCQ.purge(q, false)
	q.recvCQ.purge(q, false)
	if q.send.queue != nil {
		q.send.queue.Reset()
	}
	q.send.posted, q.recv.posted = 0, 0
	q.resets.Add(1)
	q.sendDone.Store(0)
	q.recvDone.Store(0)
	q.failed.Store(false)
	q.suspect.Store(false)
}

// resume rings the doorbell for requests that were posted in SQD, signaled or
// not, or while the kernel held the QP for a transition: it may refuse the doorbell
// then, and nobody rings it again as long as those requests wait. The caller
// holds life for reading, and modify.
func (q *qp) resume() {
	if q.ringAgain() && !q.failed.Swap(true) {
		q.flushAlive()
	}
}

// ringAgain is resume but for what a QP that has failed needs. stuck says that
// the kernel cannot execute one of the requests.
func (q *qp) ringAgain() (stuck bool) {
	q.send.Lock()
	defer q.send.Unlock()
	if q.send.queue == nil {
		return false
	}
	if q.ownDoorbell != nil {
		q.ownDoorbell.Ring()
		return false
	}
	err := q.send.doorbell.Run(false)
	if err != nil && q.refusing != nil {
		stuck, _ = q.refusing.Refused(err)
	}
	return stuck // a device that is gone shows at the next post
}

// Entered is called by the connection manager when the kernel has moved the
// QP without us.
func (q *qp) Entered(state verbs.QPState) {
	q.life.RLock()
	defer q.life.RUnlock()
	if q.gone {
		return
	}
	q.modify.Lock()
	defer q.modify.Unlock()
	q.enter(state)
}

// failedByKernel is called when a completion or a doorbell shows that the kernel
// has taken the QP to ERR; rxe does so with every service, though those that
// are not reliable have SQE for it. The kernel flushes the receives that are
// posted then; those that came a little later wait until somebody makes it
// look again.
func (q *qp) failedByKernel() {
	if q.lives() {
		return
	}
	if !q.failed.Swap(true) {
		q.flush()
	}
}

// failedByEvent is failedByKernel for an event. Of a QP that the program moves, one that is read
// late may be of before RESET: the kernel has to say that the QP is in ERR now.
func (q *qp) failedByEvent() {
	q.life.RLock() // ends with the command that destroys it
	defer q.life.RUnlock()
	q.modify.Lock() // ends with the transition that runs
	defer q.modify.Unlock()
	if q.gone {
		return
	}
	if q.managed == nil {
		if attr, err := q.query(); err != nil || attr.State != verbs.QPStateErr {
			return
		}
	}
	if !q.failed.Swap(true) {
		q.flushAlive()
	}
}

// lookAfter is failedByKernel of a QP that is suspect. RESET comes before it, or after.
func (q *qp) lookAfter() {
	q.modify.Lock() // ends with the transition that runs
	defer q.modify.Unlock()
	if q.suspect.Swap(false) {
		q.failedByKernel()
	}
}

// lives reports whether the QP is not in ERR after all: a request that failed has taken it to
// SQE, which it may even have left since.
func (q *qp) lives() bool {
	if !q.knowsSQE() || q.failed.Load() {
		return false
	}
	if !q.life.TryRLock() {
		return true // until it is destroyed, which whoever posts may hold up
	}
	defer q.life.RUnlock()
	if q.gone {
		return true
	}
	attr, err := q.query()
	return err == nil && attr.State != verbs.QPStateErr
}

// fails reports whether a completion with an error is the end of the QP. On a
// service that is not reliable it is not if the message found a receive in an
// SRQ and was not allowed to go where it wanted. Requests never fail with these
// statuses there, for no peer answers them.
func (q *qp) fails(status verbs.WCStatus) bool {
	switch status {
	case verbs.WCSuccess:
		return false
	case verbs.WCRemInvReqErr, verbs.WCRemAccessErr:
		return q.rc
	}
	return true
}

// flush makes the kernel look at the receives of a QP in ERR. It does when
// the QP is taken to ERR once more; there is no doorbell for receives. It does
// not wait for a Destroy, which drops what would be flushed, or flushes it.
func (q *qp) flush() {
	if !q.life.TryRLock() {
		return
	}
	defer q.life.RUnlock()
	if !q.gone {
		q.flushAlive()
	}
}

// flushAlive is flush for those who hold life.
func (q *qp) flushAlive() {
	in := abi.ModifyQPIn{Handle: q.handle, AttrMask: uint32(verbs.QPAttrState), QPState: uint8(verbs.QPStateErr)}
	// a QP that cannot has nothing to flush
	err := q.dev.command(abi.CmdModifyQP, abi.BytesOf(&in), nil)
	if err == nil && q.unflushed != nil {
		q.takeBack()
	}
}

// takeBack completes what the kernel has not flushed. The QP is in ERR.
func (q *qp) takeBack() {
	var sends, recvs []uint64
	q.lock()
	if q.send.queue != nil {
		sends, recvs = q.unflushed.TakeBack()
	}
	q.unlock()
	q.sendCQ.flushed(q.num, sends)
	q.recvCQ.flushed(q.num, recvs)
}

func (q *qp) Query() (verbs.QPAttr, error) {
	q.life.RLock()
	defer q.life.RUnlock()
	if q.gone {
		return verbs.QPAttr{}, verbs.ErrClosed
	}
	return q.query()
}

// query is Query for those who hold life.
func (q *qp) query() (verbs.QPAttr, error) {
	var out abi.QueryQPOut
	in := abi.QueryQPIn{Handle: q.handle, AttrMask: queryMask}
	if err := q.dev.command(abi.CmdQueryQP, abi.BytesOf(&in), abi.BytesOf(&out)); err != nil {
		return verbs.QPAttr{}, err
	}
	attr := attrOf(&out)
	if q.managed != nil {
		known := verbs.QPState(q.state.Load())
		if q.failed.Load() {
			known = verbs.QPStateErr
		}
		attr.State = q.managed.State(attr.State, known)
	}
	attr.Cap.MaxSendWR, attr.Cap.MaxRecvWR = q.sendLimit, q.recvLimit
	return attr, nil
}

// Destroy destroys the QP and drops its completions. It waits for the commands
// about the QP that run.
func (q *qp) Destroy() error {
	q.life.Lock() // ends with those commands
	defer q.life.Unlock()
	if q.gone {
		return verbs.ErrClosed
	}
	q.dev.numbers.leave(q.num)
	defer q.dev.numbers.left(q.num)
	err := q.groups.Destroy(q.attach, q.detach, q.destroyQuietly)
	if !destroyed(err) {
		if q.failed.Load() {
			q.flushAlive() // for those who have not waited
		}
		return err
	}
	q.gone = true
	q.resets.Add(1)
	q.dev.drop(q.id)
	q.sendCQ.purge(q, true)
	q.recvCQ.purge(q, true)
	return err
}

// destroyQuietly destroys the QP while nobody posts and no doorbell is rung, and
// unmaps its queues. The caller holds life.
func (q *qp) destroyQuietly() error {
	q.lock() // ends with the posts that run
	defer q.unlock()
	err := q.destroyAtKernel()
	if destroyed(err) {
		q.release()
	}
	return err
}

// release unmaps the queues. The caller holds the send and the receive lock.
func (q *qp) release() {
	if q.send.queue != nil {
		q.send.queue.Unmap()
		q.send.queue, q.recv.queue = nil, nil
	}
	q.send.doorbell.Free()
}

func (q *qp) abandon() {
	q.life.Lock()
	defer q.life.Unlock()
	q.gone = true
	q.lock()
	defer q.unlock()
	q.release()
}
