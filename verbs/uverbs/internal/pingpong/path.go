package pingpong

import (
	"fmt"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A Path is how QPs on a device reach each other: by a row of its table of GIDs, or by the
// LID.
type Path struct {
	Global bool
	LID    uint16         // 0 on Ethernet
	GID    verbs.GIDEntry // if Global
}

// PathOf is the path by LID on InfiniBand, and otherwise by the RoCE v2 GID of an IPv4 address.
func PathOf(ctx *verbs.Context) (Path, error) {
	port, err := ctx.QueryPort(1)
	if err != nil {
		return Path{}, err
	}
	if port.LID != 0 {
		return Path{LID: port.LID}, nil
	}
	gids, err := ctx.QueryGIDs(1)
	if err != nil {
		return Path{}, err
	}
	for _, g := range gids {
		if g.Type == verbs.GIDTypeRoCEv2 && netip.AddrFrom16(g.GID).Is4In6() {
			return Path{Global: true, GID: g}, nil
		}
	}
	return Path{}, fmt.Errorf("no RoCE v2 GID of an IPv4 address in %+v", gids)
}

// PathByGID is the path by GID on InfiniBand too.
func PathByGID(ctx *verbs.Context) (Path, error) {
	p, err := PathOf(ctx)
	if err != nil || p.Global {
		return p, err
	}
	gids, err := ctx.QueryGIDs(1)
	if err != nil {
		return Path{}, err
	}
	p.Global, p.GID = true, gids[0]
	return p, nil
}

// To is the way to a peer.
func (p Path) To(lid uint16, gid verbs.GID) verbs.AddressVector {
	av := verbs.AddressVector{DLID: lid, Port: 1}
	if p.Global {
		av.IsGlobal, av.DGID, av.SGIDIndex, av.HopLimit = true, gid, uint8(p.GID.Index), 1
	}
	return av
}

// Address is where a QP is.
type Address struct {
	LID uint16
	QPN uint32
	PSN uint32
	GID verbs.GID
}

const psn = 0x1234

// Address is where a QP on this path is.
func (p Path) Address(qp *verbs.QP) Address { return Address{p.LID, qp.Num(), psn, p.GID.GID} }

// Connect takes a QP in INIT to RTS, with the attributes of the pingpong programs.
func (p Path) Connect(qp *verbs.QP, service verbs.QPType, peer Address) error {
	rtr := verbs.QPAttr{
		PathMTU: verbs.MTU1024, DestQPN: peer.QPN, RQPSN: peer.PSN, MaxDestRdAtomic: 1, MinRNRTimer: 12,
		AV: p.To(peer.LID, peer.GID),
	}
	rts := verbs.QPAttr{Timeout: 14, RetryCount: 7, RNRRetry: 7, SQPSN: psn, MaxRdAtomic: 1}
	return ToRTS(qp, service, rtr, rts)
}

// ToRTS takes a QP from INIT to RTS with what its service needs of the attributes.
func ToRTS(qp *verbs.QP, service verbs.QPType, rtr, rts verbs.QPAttr) error {
	rtr.State, rts.State = verbs.QPStateRTR, verbs.QPStateRTS
	ofRTR, ofRTS := verbs.QPAttrState, verbs.QPAttrState|verbs.QPAttrSQPSN
	if service != verbs.QPTypeUD {
		ofRTR |= verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	}
	if service == verbs.QPTypeRC {
		ofRTR |= verbs.QPAttrMaxDestRdAtomic | verbs.QPAttrMinRNRTimer
		ofRTS |= verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrMaxRdAtomic
	}
	if err := qp.Modify(rtr, ofRTR); err != nil {
		return err
	}
	return qp.Modify(rts, ofRTS)
}

// Fill makes bytes that differ from place to place and from seed to seed.
func Fill(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
	return b
}
