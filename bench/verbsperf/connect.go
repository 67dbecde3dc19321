package verbsperf

import (
	"context"
	"fmt"
	"math"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// place is where an end is, at port 1 of its device.
type place struct {
	port   verbs.PortAttr
	gid    verbs.GIDEntry
	global bool // by GID, not by LID
}

// placeOf takes a row of the table of GIDs. If that is -1 it takes the LID, and where there is none
// a row with an IPv4 address, if there is one.
func placeOf(ctx *verbs.Context, row int) (place, error) {
	port, err := ctx.QueryPort(1)
	if err != nil {
		return place{}, err
	}
	gids, err := ctx.QueryGIDs(1)
	if err != nil {
		return place{}, err
	}
	if row >= 0 {
		for _, g := range gids {
			if g.Index == row {
				return place{port: port, gid: g, global: true}, nil
			}
		}
		return place{}, fmt.Errorf("%s has no GID in row %d", ctx.Name(), row)
	}
	p := place{port: port, global: port.LID == 0}
	if len(gids) > 0 {
		p.gid = gids[0]
	} else if p.global {
		return p, fmt.Errorf("%s has neither a LID nor a GID", ctx.Name())
	}
	if best, ok := rdmahost.PreferredGID(gids, netip.Addr{}); ok {
		p.gid = best
	}
	return p, nil
}

// hello is what one end tells the other of itself.
type hello struct {
	GID  verbs.GID
	LID  uint16
	MTU  verbs.MTU
	QPNs []uint32
	Addr uint64 // of the half for what arrives
	RKey uint32

	Reads uint8 // READs and atomics of a QP that may be under way here

	Listener netip.AddrPort // the server's, with -rcm
	Token    []byte         // what its clients have to know
}

func (s *side) hello() hello {
	h := hello{
		GID: s.place.gid.GID, LID: s.place.port.LID, MTU: s.place.port.ActiveMTU, Addr: s.mr.Addr() + uint64(s.half), RKey: s.mr.RKey(),
		Reads: s.serves(),
	}
	for _, qp := range s.qps {
		h.QPNs = append(h.QPNs, qp.Num())
	}
	return h
}

// connect connects the QPs of both ends, and posts receives.
func (m *meeting) connect(s *side) error {
	mine := s.hello()
	var from *listener
	if s.spec.CM && m.server {
		var err error
		from, err = m.listen()
		if err := m.agree(err); err != nil {
			return err
		}
		defer from.Close()
		mine.Listener, mine.Token = from.Addr(), from.token
	} else if s.spec.CM {
		if err := m.agree(nil); err != nil {
			return err
		}
	}
	peer, err := swap(m.control, mine)
	if err == nil && len(peer.QPNs) != len(s.qps) {
		err = fmt.Errorf("the other end has %d QPs, not %d", len(peer.QPNs), len(s.qps))
	}
	s.peer = peer
	ctx, stop := context.WithDeadline(m.ctx, m.control.by)
	defer stop()
	switch {
	case err != nil:
	case from != nil:
		err = from.accept(ctx, s)
	case s.spec.CM:
		err = s.dial(ctx)
	default:
		err = s.exchange()
	}
	return m.agree(err)
}

// exchange takes the QPs to RTS by what the ends have told each other.
func (s *side) exchange() error {
	for i, qp := range s.qps {
		if err := s.connectQP(qp, s.peer.QPNs[i]); err != nil {
			return err
		}
		if err := s.ready(i); err != nil {
			return err
		}
	}
	return nil
}

// vector is the way to the other end.
func (s *side) vector() verbs.AddressVector {
	av := verbs.AddressVector{DLID: s.peer.LID, Port: 1}
	if s.place.global {
		av.IsGlobal, av.DGID, av.SGIDIndex, av.HopLimit = true, s.peer.GID, uint8(s.place.gid.Index), 64
	}
	return av
}

// serves is how many READs and atomics of the other end's QP may be under way here, and reads
// how many of ours there.
func (s *side) serves() uint8 { return uint8(min(s.ctx.Attr().MaxQPRdAtomic, math.MaxUint8)) }

func (s *side) reads() uint8 { return uint8(min(s.ctx.Attr().MaxQPInitRdAtomic, int(s.peer.Reads))) }

func (s *side) connectQP(qp *verbs.QP, to uint32) error {
	err := qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: s.access()},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	if err != nil {
		return err
	}
	err = qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, PathMTU: min(s.place.port.ActiveMTU, s.peer.MTU), DestQPN: to,
		MaxDestRdAtomic: s.serves(), MinRNRTimer: minRNRTimer, AV: s.vector(),
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer)
	if err != nil {
		return err
	}
	return qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Timeout: ackTimeout, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: s.reads()},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic)
}

// Codes of verbs.RNRTimer and verbs.AckTimeout: 10 us, and a second.
const (
	minRNRTimer = 1
	ackTimeout  = 18
)
