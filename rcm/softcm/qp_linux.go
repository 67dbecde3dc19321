package softcm

import (
	"fmt"
	"math/rand/v2"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// onlyPort is the only port of a software device.
const onlyPort = 1

// localEndpoint returns the endpoint of a QP on a software device, with a
// fresh packet number.
func localEndpoint(qp *verbs.QP) (handshake.Endpoint, error) {
	dev := qp.PD().Context()
	if t := dev.Attr().Transport; t != verbs.TransportSoft {
		return handshake.Endpoint{}, fmt.Errorf("%w: QP on %s, which is a device of transport %v", verbs.ErrInvalid, dev.Name(), t)
	}
	gids, err := dev.QueryGIDs(onlyPort)
	if err != nil {
		return handshake.Endpoint{}, err
	}
	if len(gids) == 0 {
		return handshake.Endpoint{}, fmt.Errorf("%w: device %s has no GID", verbs.ErrInvalid, dev.Name())
	}
	return handshake.Endpoint{GID: gids[0].GID, QPN: qp.Num(), PSN: rand.Uint32N(1 << 24)}, nil
}

// toInit takes a QP from RESET to INIT and lets the caller prepare it.
func toInit(qp *verbs.QP, p *rcm.ConnParam) error {
	attr := verbs.QPAttr{State: verbs.QPStateInit, CurState: verbs.QPStateReset, Port: onlyPort, Access: p.Access}
	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	if err := qp.Modify(attr, mask); err != nil {
		return err
	}
	return handshake.Prepare(p.Prepare, qp)
}

// toRTS takes a QP from INIT over RTR to RTS, connected to peer. A device that
// finds out meanwhile that the peer is gone moves the QP to ERR; the error then
// wraps syscall.ECONNRESET.
func toRTS(qp *verbs.QP, p *rcm.ConnParam, local, peer handshake.Endpoint, depth handshake.ReadDepth) error {
	err := connectQP(qp, p, local, peer, depth)
	if err == nil {
		return nil
	}
	if a, queryErr := qp.Query(); queryErr == nil && a.State == verbs.QPStateErr {
		return fmt.Errorf("peer's QP is gone: %w: %w", syscall.ECONNRESET, err)
	}
	return err
}

func connectQP(qp *verbs.QP, p *rcm.ConnParam, local, peer handshake.Endpoint, depth handshake.ReadDepth) error {
	mtu := verbs.MTU4096
	if port, err := qp.PD().Context().QueryPort(onlyPort); err == nil && port.ActiveMTU.Bytes() > 0 {
		mtu = port.ActiveMTU
	}
	path := handshake.Path{
		AV:  verbs.AddressVector{DGID: peer.GID, IsGlobal: true, HopLimit: 1, Port: onlyPort},
		MTU: mtu, DestQPN: peer.QPN, RQPSN: peer.PSN,
	}
	if err := handshake.ToRTR(qp, p, path, depth); err != nil {
		return err
	}
	return handshake.ToRTS(qp, p, local.PSN, depth)
}
