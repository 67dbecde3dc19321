package uverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// PostSend puts the requests into the queue that the kernel reads, and rings
// its doorbell once for all of them.
//
// A request that gives a completion holds its slot until that was polled. The
// kernel would let the slot go before; but then nobody who sizes a CQ by what
// its QPs can have outstanding would be safe from overrunning it.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	if q.send.Promised {
		q.send.Enter()
	} else {
		q.send.Begin()
	}
	n, stuck, err := q.putSends(wrs)
	if q.send.Promised {
		q.send.Leave()
	} else {
		q.send.Mutex.Unlock()
	}
	if stuck {
		q.failedByKernel()
	} else if n > 0 && q.unflushed != nil && q.failed.Load() {
		q.flush()
	}
	return n, err
}

// putSends is PostSend but for what a QP that has failed needs. stuck says
// that the kernel cannot execute one of the requests. The caller holds the send lock.
func (q *qp) putSends(wrs []verbs.SendWR) (n int, stuck bool, err error) {
	if verbs.QPState(q.state.Load()) != verbs.QPStateRTS || q.send.queue == nil || q.dev.gone.Load() {
		if err := q.maySend(); err != nil {
			return 0, false, err
		}
	}
	fit := len(wrs)
	if q.failed.Load() || fit > q.freeSends() {
		fit = q.fitting(wrs)
	}
	short := verbs.ErrQueueFull // of less than all
	binds := q.dev.windows.Load() > 0
	if binds {
		var refused error
		if fit, refused = q.takeWindows(wrs[:fit]); refused != nil {
			short = refused
		}
	}
	n, doorbell, err := q.send.queue.PostSend(wrs[:fit])
	if err != nil && q.ownDoorbell != nil && errors.Is(err, verbs.ErrQueueFull) {
		q.sendCQ.gather()
		var more int
		more, doorbell, err = q.send.queue.PostSend(wrs[n:fit])
		n += more
	}
	if err == nil && fit < len(wrs) {
		err = short
	}
	if binds {
		q.giveBackWindows(n)
	}
	q.send.posted += uint32(q.countSignaled(wrs[:n]))
	if doorbell {
		refusal := q.send.doorbell.Run(brief(wrs[:n]))
		if refusal != nil && q.refusing != nil {
			stuck, refusal = q.refusing.Refused(refusal)
		}
		if refusal != nil {
			refusal = q.dev.failed("POST_SEND", refusal)
			if err == nil {
				err = refusal
			}
		}
	}
	return n, stuck, err
}

// maySend says why nothing can be sent, nil if it can. The caller holds the send lock.
func (q *qp) maySend() error {
	if q.send.queue == nil {
		return verbs.ErrClosed
	}
	switch state := verbs.QPState(q.state.Load()); state {
	case verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR:
		return fmt.Errorf("%w: a QP in %v sends nothing", verbs.ErrInvalid, state)
	}
	if q.dev.gone.Load() {
		return errGone
	}
	return nil
}

// WQEBytes is how long a request is in the queue, 0 if the driver does not tell.
func (q *qp) WQEBytes(wr *verbs.SendWR) int {
	if queue, ok := q.queue.(driver.LengthQP); ok {
		return queue.WQEBytes(wr)
	}
	return 0
}

// briefBytes is what a device of software sends in some hundred microseconds,
// which is not longer than other things that the runtime waits for.
const briefBytes = 128 << 10

// brief reports whether the doorbell for these requests may be rung without
// telling the scheduler. Where it is told, and a goroutine polls, it gives the
// CPU's goroutines to another thread again and again.
func brief(wrs []verbs.SendWR) bool {
	bytes := 0
	for i := range wrs {
		bytes += wrs[i].Len()
	}
	return bytes <= briefBytes
}

// freeSends is how many requests that give a completion there is room for. The caller
// holds the send lock.
func (q *qp) freeSends() int { return q.sendLimit - int(int32(q.send.posted-q.sendDone.Load())) }

// fitting is how many requests there is room for.
func (q *qp) fitting(wrs []verbs.SendWR) int {
	if q.failed.Load() {
		// Every request completes now, and which ones have cannot be told
		// from what is polled.
		if q.unflushed != nil {
			return q.sendCQ.room(len(wrs))
		}
		return len(wrs)
	}
	free := q.freeSends()
	for i := range wrs {
		if q.signalAll || wrs[i].Flags&verbs.SendSignaled != 0 {
			if free <= 0 {
				return i
			}
			free--
		}
	}
	return len(wrs)
}

func (q *qp) countSignaled(wrs []verbs.SendWR) (n int) {
	if q.signalAll {
		return len(wrs)
	}
	for i := range wrs {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			n++
		}
	}
	return n
}

// PostRecv puts receives into the queue, which takes no system call.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.recv.Promised {
		q.recv.Enter()
	} else {
		q.recv.Begin()
	}
	n, err := q.putRecvs(wrs)
	if q.recv.Promised {
		q.recv.Leave()
	} else {
		q.recv.Mutex.Unlock()
	}
	if n > 0 && q.failed.Load() {
		q.flush()
	}
	return n, err
}

// putRecvs is PostRecv for those who hold the receive lock.
func (q *qp) putRecvs(wrs []verbs.RecvWR) (int, error) {
	if q.recv.queue == nil {
		return 0, verbs.ErrClosed
	}
	if q.srq != nil {
		return 0, fmt.Errorf("%w: the QP receives from an SRQ", verbs.ErrInvalid)
	}
	if verbs.QPState(q.state.Load()) == verbs.QPStateReset {
		return 0, fmt.Errorf("%w: a QP in RESET receives nothing", verbs.ErrInvalid)
	}
	if q.dev.gone.Load() {
		return 0, errGone
	}
	fit := len(wrs)
	if !q.failed.Load() {
		fit = min(fit, max(0, q.recvLimit-int(int32(q.recv.posted-q.recvDone.Load()))))
	} else if q.unflushed != nil {
		fit = q.recvCQ.room(fit)
	}
	n, err := q.recv.queue.PostRecv(wrs[:fit])
	if err == nil && fit < len(wrs) {
		err = verbs.ErrQueueFull
	}
	q.recv.posted += uint32(n)
	return n, err
}

// completed counts a completion as it is polled, and reports whether it has
// an error. The CQ calls it, with mu held.
func (q *qp) completed(wc *verbs.WC) (failed bool) {
	switch {
	case wc.Status != verbs.WCSuccess:
		if q.knowsSQE() && wc.Opcode < verbs.WCRecv && q.errorsBefore > 0 {
			q.errorsBefore--
			q.sendDone.Store(q.sendDone.Load() + 1)
		}
		return true
	case wc.Opcode < verbs.WCRecv:
		q.sendDone.Store(q.sendDone.Load() + 1)
	case q.srq == nil:
		q.recvDone.Store(q.recvDone.Load() + 1)
	}
	return false
}

// emptyWriteID is the id of requests that are not the caller's. It is drawn so that
// no caller's is the same.
var emptyWriteID = rand.Uint64()

// PostEmptyWrite sends the peer something that its kernel has to look at, if the driver
// needs that, the QP is in RTS, and nothing else is on its way there. The caller
// of the QP never sees its completion. It is for the connection manager: an
// acceptor's siw does not always look at what came before it was ready.
//
// Goroutines may call it at once with everything.
func (q *qp) PostEmptyWrite() {
	q.putEmptyWrite()
	if q.unflushed != nil && q.failed.Load() {
		q.flush()
	}
}

func (q *qp) putEmptyWrite() {
	q.send.Lock()
	defer q.send.Unlock()
	queue, ok := q.send.queue.(driver.EmptyWriteQP)
	if !ok || q.failed.Load() || verbs.QPState(q.state.Load()) != verbs.QPStateRTS || q.dev.gone.Load() {
		return
	}
	if queue.PostEmptyWrite(emptyWriteID) {
		_ = q.send.doorbell.Run(true) // refused only by a QP that has failed
	}
}
