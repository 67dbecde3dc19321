package soft

import (
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// ackQueue holds requests that ran, while the peer receives from an SRQ:
// whether there is a receive for them shows only when the peer polls, so they
// complete when it has taken their descriptor. Guarded by sendMu.
type ackQueue struct {
	list  []ack // a queue: the oldest at first
	first int
	n     int

	starved uint64 // position of the descriptor whose RNR retries are counted
	tries   int
	due     time.Time // of the RNR timer
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
		if !q.out.refresh() {
			q.failLocked(failure{send: verbs.WCBadRespErr, event: verbs.EventQPFatal, raise: true})
			return
		}
		for q.acks.n != 0 && q.acks.list[q.acks.first].pos < q.out.consumed {
			if k := q.acks.pop(); k.signaled {
				q.finish(k.id, k.op, k.n, verbs.WCSuccess)
			}
		}
		if q.acks.n == 0 {
			q.open = q.mayRun()
			return
		}
		before := q.out.consumed
		q.out.askForNews()
		// The peer may have gone on before it could see the wish.
		if !q.out.refresh() || q.out.consumed == before {
			break
		}
	}
	q.countStarvation()
}

// countStarvation is the RNR protocol against an SRQ: the peer says at which
// descriptor it found the SRQ empty.
func (q *qp) countStarvation() {
	a := &q.acks
	oldest := q.out.consumed
	if q.out.hdr.starved.Load() != oldest+1 {
		q.wakeIn(nudgeDelay)
		return
	}
	now := time.Now()
	if a.due.IsZero() || a.starved != oldest {
		a.starved, a.tries, a.due = oldest, 0, time.Time{}
	} else if now.Before(a.due) {
		return
	}
	if a.tries == 0 {
		rnrs.Add(1)
	}
	if a.tries++; q.attr.RNRRetry != 7 && a.tries > int(q.attr.RNRRetry) {
		q.failLocked(failure{send: verbs.WCRNRRetryExcErr})
		return
	}
	wait := verbs.RNRTimer(uint8(q.out.hdr.gate.Load() >> gateRNR & 31))
	a.due = now.Add(wait)
	q.wakeIn(wait)
}

// flushAcks completes what the peer has not consumed, the oldest with status
// and the rest as flushed. It returns the status for what comes next.
func (q *qp) flushAcks(status verbs.WCStatus) verbs.WCStatus {
	for q.acks.n != 0 {
		k := q.acks.pop()
		q.finish(k.id, k.op, 0, status)
		status = verbs.WCWRFlushErr
	}
	return status
}
