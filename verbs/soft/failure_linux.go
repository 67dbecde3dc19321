package soft

import "github.com/seed-b9b531af/ramjet/verbs"

// failure says why a QP goes to ERR and who learns what.
type failure struct {
	send      verbs.WCStatus // for the oldest outstanding send request; 0: it is flushed
	recv      verbs.WCStatus // for the oldest receive; 0: it is flushed
	tell      faultKind      // what the peer learns
	peerKnows bool           // the peer learns nothing, it told us
	event     verbs.EventType
	raise     bool // raise event
}

// fail moves the QP to ERR. It does nothing if it is there or in RESET.
func (q *qp) fail(f failure) {
	q.sendMu.Lock()
	q.failLocked(f)
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
	q.in.verdict.Store(uint32(f.recv))
	q.in.flushing.Store(true)
	q.in.wantAttention()
	q.pending, q.after = true, f
}

// unlock releases sendMu and then does what must not be done under it.
func (q *qp) unlock() {
	if q.gone != nil {
		defer closeRemotes(q.gone)
		q.gone = nil
	}
	if !q.pending {
		q.sendMu.Unlock()
		return
	}
	q.pending = false
	f, l := q.after, q.link
	q.sendMu.Unlock()
	q.recvCQ.ring(true)
	if l != nil && !f.peerKnows {
		l.tell(f.tell)
	}
	if f.raise {
		q.dev.raise(verbs.DriverEvent{Type: f.event, QPN: q.num})
	}
	if q.srq != nil {
		q.dev.raise(verbs.DriverEvent{Type: verbs.EventLastWQEReached, QPN: q.num})
	}
}
