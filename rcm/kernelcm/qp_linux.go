package kernelcm

import (
	"context"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// The kernel's connection manager knows the attributes of each transition
// (INIT_QP_ATTR); the QP is ours, so we apply them. What ConnParam says goes
// over the kernel's values: its RNR timer is code 0, 655 ms, and its ACK
// timeout on RoCE 2 s. On iWARP there is only INIT, the kernel does the rest.

// complete returns the parameters for a connection of qp with their defaults filled in.
// It fails if qp is not on the device, on which the connection is, or ctx has ended.
func (d device) complete(ctx context.Context, qp *verbs.QP, p rcm.ConnParam, maxData int) (rcm.ConnParam, error) {
	p, err := handshake.Complete(p, qp, maxData)
	if err != nil {
		return p, err
	}
	if name := qp.PD().Context().Name(); name != d.name {
		return p, fmt.Errorf("%w: QP on %s, the connection is on %s", verbs.ErrInvalid, name, d.name)
	}
	if ctx.Err() != nil {
		return p, handshake.ContextError(ctx)
	}
	return p, nil
}

// toInit takes a QP from RESET to INIT and lets the caller prepare it.
func (id *cmID) toInit(qp *verbs.QP, p *rcm.ConnParam) error {
	a, err := id.qpAttr(uint32(verbs.QPStateInit))
	if err != nil {
		return err
	}
	attr := verbs.QPAttr{State: verbs.QPStateInit, PKeyIndex: a.pkeyIndex, Port: a.port, Access: p.Access}
	const known = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	if err := qp.Modify(attr, verbs.QPAttrMask(a.mask)&known); err != nil {
		return err
	}
	return handshake.Prepare(p.Prepare, qp)
}

// toRTS takes a QP from INIT over RTR to RTS, once the peer's is known.
func (id *cmID) toRTS(qp *verbs.QP, p *rcm.ConnParam, depth handshake.ReadDepth) error {
	a, err := id.qpAttr(uint32(verbs.QPStateRTR))
	if err != nil {
		return err
	}
	path := handshake.Path{AV: a.ah.vector(), MTU: verbs.MTU(a.pathMTU), DestQPN: a.destQPN, RQPSN: a.rqPSN}
	if err := handshake.ToRTR(qp, p, path, depth); err != nil {
		return err
	}
	if a, err = id.qpAttr(uint32(verbs.QPStateRTS)); err != nil {
		return err
	}
	return handshake.ToRTS(qp, p, a.sqPSN, depth)
}

func (a *ucmAHAttr) vector() verbs.AddressVector {
	return verbs.AddressVector{
		DGID:         a.dgid,
		SGIDIndex:    a.sgidIndex,
		FlowLabel:    a.flowLabel & (1<<20 - 1),
		HopLimit:     a.hopLimit,
		TrafficClass: a.trafficClass,
		DLID:         a.dlid,
		SL:           a.sl,
		SrcPathBits:  a.srcPathBits,
		StaticRate:   a.staticRate,
		IsGlobal:     a.isGlobal != 0,
		Port:         a.port,
	}
}

// entered tells the provider of a QP that the kernel has moved it.
func entered(qp *verbs.QP, state verbs.QPState) {
	if d, ok := qp.Driver().(verbs.StateDriver); ok {
		d.Entered(state)
	}
}

// connParam is p as CONNECT and ACCEPT carry it.
func connParam(p *rcm.ConnParam, qp *verbs.QP, depth handshake.ReadDepth) *ucmConnParam {
	c := &ucmConnParam{
		qpNum:              qp.Num(),
		privateDataLen:     uint8(len(p.PrivateData)),
		responderResources: depth.In,
		initiatorDepth:     depth.Out,
		flowControl:        1,
		retryCount:         p.RetryCount,
		rnrRetryCount:      p.RNRRetry,
		valid:              1,
	}
	copy(c.privateData[:], p.PrivateData)
	if qp.Attr().SRQ != nil {
		c.srq = 1
	}
	return c
}
