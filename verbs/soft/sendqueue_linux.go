package soft

import (
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// sendQueue holds the requests that could not go on when they were posted,
// oldest first, with copies of what PostSend may not keep. Guarded by sendMu.
//
// What lets the oldest go on calls drive: the end of the pairing, the answer
// about an rkey, the RNR timer, the message of a peer that made room.
type sendQueue struct {
	ring  []sendEntry // grows with use
	first int
	n     int
	kept  bool // the ring stays when it is empty

	// How far the oldest is.
	begun     bool      // a SEND that has its receive
	sent      int       // bytes of it that are in the peer's buffer
	refused   bool      // the peer had no receive for it, which was counted
	tries     int       // RNR retries so far
	asks      int       // questions to the peer about its keys
	notBefore time.Time // RNR timer
	silence   silence   // of the peer that it waits for
	missing   progress  // what it waits for
}

type sendEntry struct {
	wr     verbs.SendWR
	sgl    []verbs.SGE
	data   []byte
	inline [1][]byte
	bind   verbs.Bind
	flush  verbs.Flush
	to     verbs.Datagram
}

// keptData bounds the inline copy that an entry keeps for its next use.
const keptData = 64 << 10

// add queues a copy of wr. There is room: postSlow has counted.
func (s *sendQueue) add(wr *verbs.SendWR, depth int) {
	if s.n == len(s.ring) {
		ring := make([]sendEntry, min(max(2*s.n, shortQueue), depth))
		for i := range s.n {
			s.ring[(s.first+i)%s.n].moveTo(&ring[i])
		}
		s.ring, s.first = ring, 0
	}
	e := &s.ring[(s.first+s.n)%len(s.ring)]
	s.n++
	e.wr = *wr
	if wr.Bind != nil {
		e.bind = *wr.Bind
		e.wr.Bind = &e.bind
	}
	if wr.Flush != nil {
		e.flush = *wr.Flush
		e.wr.Flush = &e.flush
	}
	if wr.Datagram != nil {
		e.to = *wr.Datagram
		e.wr.Datagram = &e.to
	}
	if wr.Flags&verbs.SendInline != 0 {
		e.data = e.data[:0]
		for _, b := range wr.Inline {
			e.data = append(e.data, b...)
		}
		e.inline[0] = e.data
		e.wr.Inline = e.inline[:]
		e.wr.SGL = nil
		return
	}
	e.sgl = append(e.sgl[:0], wr.SGL...)
	e.wr.SGL, e.wr.Inline = e.sgl, nil
}

// moveTo copies e to where its inline data is found again.
func (e *sendEntry) moveTo(to *sendEntry) {
	*to = *e
	if e.wr.Inline != nil {
		to.wr.Inline = to.inline[:]
	}
	if e.wr.Bind != nil {
		to.wr.Bind = &to.bind
	}
	if e.wr.Flush != nil {
		to.wr.Flush = &to.flush
	}
	if e.wr.Datagram != nil {
		to.wr.Datagram = &to.to
	}
}

func (s *sendQueue) oldest() *sendEntry { return &s.ring[s.first] }

// drop removes the oldest.
func (s *sendQueue) drop() {
	e := s.oldest()
	if cap(e.data) > keptData {
		e.data = nil
		e.inline[0] = nil
	}
	s.first = (s.first + 1) % len(s.ring)
	if s.n--; s.n == 0 && !s.kept {
		// Each QP waits once, for the key of its peer. Most never wait again.
		s.ring, s.first, s.kept = nil, 0, true
	}
	s.begun, s.refused, s.sent, s.tries, s.asks = false, false, 0, 0, 0
	s.notBefore, s.silence = time.Time{}, silence{}
}

func (s *sendQueue) clear() { *s = sendQueue{} }

// block arranges for drive to be called when the oldest request can go on.
// It returns false if drive has to look again now: the request can go on, or has
// been given up.
func (q *qp) block(state progress) bool {
	q.sq.missing = state
	switch state {
	case needSpace:
		q.out.askForNotify()
		// The peer may have made room before it could see the wish.
		before := q.out.consumed
		if !q.out.refresh() || q.out.consumed != before {
			return false
		}
		q.wakeIn(drainDelay)
		return true
	case needRecv:
		if q.uc {
			q.give(verbs.WCRNRRetryExcErr)
			return false
		}
		if q.sq.tries++; q.attr.RNRRetry != 7 && q.sq.tries > int(q.attr.RNRRetry) {
			q.give(verbs.WCRNRRetryExcErr)
			return false
		}
		wait := q.rnrWait(q.sq.tries)
		q.sq.notBefore = time.Now().Add(wait)
		q.wakeIn(wait)
		return true
	case needAcks:
		q.wakeIn(drainDelay)
		return true
	default:
		return q.waitForPeer()
	}
}

// waitForPeer bounds the time that the oldest request waits for the peer to
// pair or to tell about a key. It returns false if it has been given up.
func (q *qp) waitForPeer() bool {
	budget := q.retryBudget()
	if budget == 0 {
		return true
	}
	left := q.sq.silence.left(time.Now(), budget)
	if left == 0 {
		q.give(verbs.WCRetryExcErr)
		return false
	}
	q.wakeIn(left)
	return true
}

// The peer answers in its own time, not in that of a NIC: the retry time is
// held between these.
const minRetryBudget = 500 * time.Millisecond

var maxRetryBudget = 5 * time.Second // a variable for tests, in which peers are made unable to answer

// retryBudget is how long the peer may keep silent, 0: for ever. It is the most for a
// peer that is paired, whose death the kernel would tell: its process does not run, and
// a NIC would answer without it.
func (q *qp) retryBudget() time.Duration {
	timeout := verbs.AckTimeout(q.attr.Timeout)
	if timeout == 0 {
		return 0
	}
	if q.link != nil {
		return maxRetryBudget
	}
	timeout = min(timeout, maxRetryBudget) * time.Duration(q.attr.RetryCount+1)
	return min(max(timeout, minRetryBudget), maxRetryBudget)
}

// silence measures how long a peer has not answered, in steps of which each ends when
// this process sees that its time is over. When the process has not run, on a busy
// machine or because it was stopped, that counts as one step at most: the answer may have
// come meanwhile, and the peer may have run as little.
type silence struct {
	steps int       // that are over
	ends  time.Time // the present one; zero before the first
}

// silenceSteps is more than the steps that two processes take to pair and tell a key.
const silenceSteps = 16

// left returns the rest of the present step, 0 when a peer may not be silent any longer
// that may be for as long as budget.
func (s *silence) left(now time.Time, budget time.Duration) time.Duration {
	if now.Before(s.ends) {
		return s.ends.Sub(now)
	}
	if !s.ends.IsZero() {
		s.steps++
	}
	if s.steps == silenceSteps {
		return 0
	}
	step := budget / silenceSteps
	s.ends = now.Add(step)
	return step
}

// give fails the oldest request, which may wait for the peer's SRQ: with its QP, or alone
// if that is unreliable.
func (q *qp) give(status verbs.WCStatus) {
	if !q.uc {
		q.failLocked(failure{send: status})
		return
	}
	wr := q.sq.oldest().wr
	q.sq.drop()
	q.conclude(&wr, outcome{status: status})
}

// wakeIn has drive called after d, or earlier: then it asks again.
func (q *qp) wakeIn(d time.Duration) {
	now := time.Now()
	due := now.Add(d)
	if q.due.After(now) && q.due.Before(due) {
		return
	}
	q.due = due
	if q.timer == nil {
		q.timer = time.AfterFunc(d, q.onTimer)
		return
	}
	q.timer.Reset(d)
}

func (q *qp) stopTimer() {
	q.due = time.Time{}
	if q.timer != nil {
		q.timer.Stop()
	}
}

// drainDelay is how long the peer has to poll, before it is asked to take
// what is in its ring without.
const drainDelay = time.Millisecond

// onTimer runs when something has been waited for long enough.
func (q *qp) onTimer() {
	q.sendMu.Lock()
	q.due = time.Time{}
	l := q.link
	waits := q.acks.n != 0 || (q.sq.n != 0 && q.sq.missing == needSpace)
	if now := time.Now(); !q.acks.asked && !now.Before(q.acks.due) {
		q.acks.asked, q.acks.due = true, now.Add(drainDelay)
	}
	q.sendMu.Unlock()
	if l != nil && waits {
		l.drain()
	}
	q.onProgress()
}

// onProgress runs when something may have changed for what waits: a timer, a message
// of the peer.
func (q *qp) onProgress() {
	q.sendMu.Lock()
	if q.link != nil && q.acks.n != 0 {
		q.retire()
	}
	q.drive()
	q.unlock()
}

// flushSends completes everything outstanding, but what the peer has taken has succeeded: the
// oldest with status if that is set, the rest as flushed.
func (q *qp) flushSends(status verbs.WCStatus) {
	if status == verbs.WCSuccess {
		status = verbs.WCWRFlushErr
	}
	if q.acks.n != 0 {
		q.completeTaken()
	}
	for q.acks.n != 0 {
		k := q.acks.pop()
		q.finish(k.id, k.op, 0, status)
		status = verbs.WCWRFlushErr
	}
	for q.sq.n != 0 {
		e := q.sq.oldest()
		q.finish(e.wr.ID, e.wr.Opcode, 0, status)
		q.sq.drop()
		status = verbs.WCWRFlushErr
	}
}

// ackQueue holds requests that ran, while the peer receives from an SRQ:
// whether there is a receive for them shows only when the peer polls, so they
// complete when it has taken their descriptor. Guarded by sendMu.
type ackQueue struct {
	list  []ack // a queue: the oldest at first
	first int
	n     int

	starved uint64 // position of the descriptor whose RNR retries are counted, and one
	tries   int
	asked   bool      // the peer was asked to look again behind the RNR timer
	due     time.Time // the end of that timer, or when asked of the time for an answer
}

type ack struct {
	pos      uint64 // descriptor that has to be consumed
	id       uint64
	n        int
	op       verbs.Opcode
	signaled bool
}

func (a *ackQueue) add(k ack) {
	if a.first > 64 && a.first > len(a.list)/2 {
		a.list = append(a.list[:0], a.list[a.first:]...)
		a.first = 0
	}
	a.list = append(a.list, k)
	a.n++
}

func (a *ackQueue) pop() ack {
	k := a.list[a.first]
	a.first++
	if a.n--; a.n == 0 {
		a.list, a.first = a.list[:0], 0
	}
	return k
}

func (a *ackQueue) clear() { *a = ackQueue{} }

// retire completes what the peer has consumed, and if it starves, counts the
// RNR retries of the oldest.
func (q *qp) retire() {
	for {
		q.out.publish()
		if !q.completeTaken() {
			q.failLocked(failure{send: verbs.WCBadRespErr, event: verbs.EventQPFatal, raise: true})
			return
		}
		if q.acks.n == 0 {
			q.open = q.mayRun()
			return
		}
		before := q.out.consumed
		q.out.askForNotify()
		// The peer may have gone on before it could see the wish.
		if !q.out.refresh() || q.out.consumed == before {
			break
		}
	}
	q.countStarvation()
}

// completeTaken completes what the peer has consumed; false if it says what cannot be.
func (q *qp) completeTaken() bool {
	if !q.out.refresh() {
		return false
	}
	for q.acks.n != 0 && q.acks.list[q.acks.first].pos < q.out.consumed {
		if k := q.acks.pop(); k.signaled {
			q.finish(k.id, k.op, k.n, verbs.WCSuccess)
		}
	}
	return true
}

// countStarvation is the RNR protocol against an SRQ: the peer says at which
// descriptor it found the SRQ empty. It may have posted something since and not poll, so a retry
// counts when it could answer onTimer.
func (q *qp) countStarvation() {
	a := &q.acks
	starved := q.out.consumed + 1
	if q.out.Header.Starved.Load() != starved {
		q.wakeIn(drainDelay)
		return
	}
	now := time.Now()
	if a.starved != starved {
		a.starved, a.tries = starved, 0
		rnrs.Add(1)
	} else if !a.asked || now.Before(a.due) {
		q.wakeIn(a.due.Sub(now)) // the timer may have been set for earlier
		return
	}
	if a.tries++; q.attr.RNRRetry != 7 && a.tries > int(q.attr.RNRRetry) {
		q.failLocked(failure{send: verbs.WCRNRRetryExcErr})
		return
	}
	wait := q.rnrWait(a.tries)
	a.asked, a.due = false, now.Add(wait)
	q.wakeIn(wait)
}

// rnrWait is the peer's RNR timer. One that is shorter than drainDelay is heeded for quickTries:
// more of them than a QP can ask for go on without end.
func (q *qp) rnrWait(tries int) time.Duration {
	wait := verbs.RNRTimer(uint8(q.out.Header.Gate.Load() >> protocol.GateRNR & 31))
	if tries > quickTries {
		wait = max(wait, drainDelay)
	}
	return wait
}

const quickTries = 7
