package rcm

import (
	"fmt"
	"math/rand/v2"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// softPort is the only port of a software device.
const softPort = 1

// endpoint is where a QP is and with which packet it begins.
type endpoint struct {
	gid verbs.GID
	qpn uint32 // 24 bits
	psn uint32 // 24 bits
}

// localEndpoint returns the endpoint of a QP on a software device, with a
// fresh packet number.
func localEndpoint(qp *verbs.QP) (endpoint, error) {
	dev := qp.PD().Context()
	if t := dev.Attr().Transport; t != verbs.TransportSoft {
		return endpoint{}, fmt.Errorf("%w: QP on %s, which is a device of transport %v", verbs.ErrInvalid, dev.Name(), t)
	}
	gids, err := dev.QueryGIDs(softPort)
	if err != nil {
		return endpoint{}, err
	}
	if len(gids) == 0 {
		return endpoint{}, fmt.Errorf("%w: device %s has no GID", verbs.ErrInvalid, dev.Name())
	}
	return endpoint{gid: gids[0].GID, qpn: qp.Num(), psn: rand.Uint32N(1 << 24)}, nil
}

// toInit takes a QP from RESET to INIT and lets the caller prepare it.
func toInit(qp *verbs.QP, p *ConnParam) error {
	attr := verbs.QPAttr{State: verbs.QPStateInit, CurState: verbs.QPStateReset, Port: softPort, Access: p.Access}
	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	if err := qp.Modify(attr, mask); err != nil {
		return err
	}
	return p.prepare(qp)
}

// readDepth is how many READs and atomics may be under way in each direction.
type readDepth struct{ out, in uint8 }

// agree cuts our wishes down to what the peer announced.
func (p *ConnParam) agree(peerResources, peerDepth uint8) readDepth {
	return readDepth{out: min(p.InitiatorDepth, peerResources), in: min(p.ResponderResources, peerDepth)}
}

// toRTS takes a QP from INIT over RTR to RTS, connected to peer. A device that
// finds out meanwhile that the peer is gone moves the QP to ERR; the error then
// wraps syscall.ECONNRESET.
func toRTS(qp *verbs.QP, p *ConnParam, local, peer endpoint, depth readDepth) error {
	err := connectQP(qp, p, local, peer, depth)
	if err == nil {
		return nil
	}
	if a, queryErr := qp.Query(); queryErr == nil && a.State == verbs.QPStateErr {
		return fmt.Errorf("peer's QP is gone: %w: %w", syscall.ECONNRESET, err)
	}
	return err
}

func connectQP(qp *verbs.QP, p *ConnParam, local, peer endpoint, depth readDepth) error {
	mtu := verbs.MTU4096
	if port, err := qp.PD().Context().QueryPort(softPort); err == nil && port.ActiveMTU.Bytes() > 0 {
		mtu = port.ActiveMTU
	}
	rtr := verbs.QPAttr{
		State:           verbs.QPStateRTR,
		AV:              verbs.AddressVector{DGID: peer.gid, IsGlobal: true, HopLimit: 1, Port: softPort},
		PathMTU:         mtu,
		DestQPN:         peer.qpn,
		RQPSN:           peer.psn,
		MaxDestRdAtomic: depth.in,
		MinRNRTimer:     p.MinRNRTimer,
	}
	err := qp.Modify(rtr, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer)
	if err != nil {
		return err
	}
	rts := verbs.QPAttr{
		State:       verbs.QPStateRTS,
		Timeout:     p.Timeout,
		RetryCount:  p.RetryCount,
		RNRRetry:    p.RNRRetry,
		SQPSN:       local.psn,
		MaxRdAtomic: depth.out,
	}
	return qp.Modify(rts, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
		verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic)
}
