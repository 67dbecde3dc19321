package soft

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

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
		p = newPairing(q, endpoint{gid: q.attr.AV.DGID, qpn: q.attr.DestQPN})
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
	case mask&verbs.QPAttrAV != 0 && attr.AV.DGID == verbs.GID{}:
		return fmt.Errorf("%w: address vector without a destination GID", verbs.ErrInvalid)
	}
	return nil
}

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
