package soft

import "github.com/seed-b9b531af/ramjet/verbs"

// A QP of the unreliable connection service works as a reliable one, but is told
// nothing by its peer: a message that the peer does not take is lost, and its
// request succeeds all the same. What is posted before the two ends are paired waits
// for that, as long as a reliable QP would.

// concludeUnreliable ends a failed request of an unreliable QP; false if it ends as
// that of a reliable one.
func (q *qp) concludeUnreliable(wr *verbs.SendWR, v outcome) bool {
	if v.cut {
		return false // no message may follow
	}
	q.sq.sent, q.sq.begun = 0, false
	switch v.status {
	case verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCRetryExcErr, verbs.WCRNRRetryExcErr, verbs.WCBadRespErr:
		if q.signaled(wr) {
			q.finish(wr.ID, wr.Opcode, wr.Len(), verbs.WCSuccess)
		}
		return true
	}
	// An error of our own stops the send queue alone.
	q.finish(wr.ID, wr.Opcode, 0, v.status)
	q.stopTimer()
	q.setState(stateSQE)
	q.flushSends(verbs.WCSuccess)
	return true
}

// losePeer takes the end of the peer, or of the pairing with it, or what it complains
// of. sendMu is held.
func (q *qp) losePeer(f failure) {
	if !q.uc {
		q.failLocked(f)
		return
	}
	q.alone, q.open = true, false
	q.drive()
}
