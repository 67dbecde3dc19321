package handshake

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// Prepare lets the caller, if it wants to, make qp, which is in INIT, ready for the peer.
func Prepare(prepare func(*verbs.QP) error, qp *verbs.QP) error {
	if prepare == nil {
		return nil
	}
	if err := prepare(qp); err != nil {
		return fmt.Errorf("prepare QP: %w", err)
	}
	return nil
}

// A Path is the way to the peer's QP.
type Path struct {
	AV      verbs.AddressVector
	MTU     verbs.MTU
	DestQPN uint32
	RQPSN   uint32 // of the first packet that comes
}

// ToRTR takes a QP from INIT to RTR.
func ToRTR(qp *verbs.QP, p *rcm.ConnParam, path Path, depth ReadDepth) error {
	attr := verbs.QPAttr{
		State:           verbs.QPStateRTR,
		AV:              path.AV,
		PathMTU:         path.MTU,
		DestQPN:         path.DestQPN,
		RQPSN:           path.RQPSN,
		MaxDestRdAtomic: depth.In,
		MinRNRTimer:     p.MinRNRTimer,
	}
	return qp.Modify(attr, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer)
}

// ToRTS takes a QP from RTR to RTS. psn is that of the first packet that goes.
func ToRTS(qp *verbs.QP, p *rcm.ConnParam, psn uint32, depth ReadDepth) error {
	attr := verbs.QPAttr{
		State:       verbs.QPStateRTS,
		Timeout:     p.Timeout,
		RetryCount:  p.RetryCount,
		RNRRetry:    p.RNRRetry,
		SQPSN:       psn,
		MaxRdAtomic: depth.Out,
	}
	return qp.Modify(attr, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
		verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic)
}

// Failed moves the QP of a connection that did not come about to ERR and
// returns err.
func Failed(qp *verbs.QP, err error) error {
	// The QP may be in RESET or closed; then there is nothing to stop.
	_ = qp.Fail()
	return err
}
