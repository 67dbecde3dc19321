package verbsperf

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// patience is how long nothing may happen.
const patience = 20 * time.Second

// side is one end of a measurement: connected QPs, and memory that is half for
// what is sent and half for what arrives.
type side struct {
	spec spec
	ctx  *verbs.Context
	gid  verbs.GIDEntry
	pd   *verbs.PD
	ch   *verbs.CompChannel
	send *verbs.CQ
	recv *verbs.CQ
	mr   *verbs.MR
	qps  []*verbs.QP
	peer []address
	half int
}

// address is what one end tells the other of a QP.
type address struct {
	GID  verbs.GID
	QPN  uint32
	Addr uint64 // of the half for what arrives
	RKey uint32
}

// needs are the capabilities of each operation.
var needs = map[string]verbs.Cap{
	"write_imm": verbs.CapWriteWithImm, "read": verbs.CapRead, "atomic": verbs.CapAtomics,
}

// operation is the test's name without lat and bw.
func (s *spec) operation() string { return s.Test[:strings.LastIndex(s.Test, "_")] }

func newSide(ctx *verbs.Context, sp spec) (*side, error) {
	attr := ctx.Attr()
	if attr.Transport == verbs.TransportIWARP {
		return nil, fmt.Errorf("%s connects by a connection manager only: %w", attr.Name, verbs.ErrUnsupported)
	}
	if need := needs[sp.operation()]; !attr.Caps.Has(need) {
		return nil, fmt.Errorf("%s: %w", sp.operation(), verbs.ErrUnsupported)
	}
	s := &side{spec: sp, ctx: ctx, half: max(4096, (sp.Size+4095)&^4095)}
	if err := s.make(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *side) make() error {
	gids, err := s.ctx.QueryGIDs(1)
	if err != nil || len(gids) == 0 {
		return cmp.Or(err, errors.New("the device has no GID"))
	}
	s.gid = gids[0]
	for _, g := range gids {
		if g.Type == verbs.GIDTypeRoCEv2 && netip.AddrFrom16(g.GID).Is4In6() {
			s.gid = g
		}
	}
	if s.pd, err = s.ctx.AllocPD(); err != nil {
		return err
	}
	if s.ch, err = s.ctx.CreateCompChannel(); err != nil {
		return err
	}
	for _, cq := range []**verbs.CQ{&s.send, &s.recv} {
		if *cq, err = s.ctx.CreateCQ(verbs.CQAttr{CQE: (s.spec.Depth + 1) * s.spec.QPs}, s.ch); err != nil {
			return err
		}
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if s.ctx.Attr().Caps.Has(verbs.CapAtomics) {
		access |= verbs.AccessRemoteAtomic
	}
	if s.mr, err = s.pd.AllocMR(2*s.half, access, verbs.MROptions{}); err != nil {
		return err
	}
	for range s.spec.QPs {
		qp, err := s.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: s.send, RecvCQ: s.recv, Cap: verbs.QPCap{
			MaxSendWR: s.spec.Depth + 1, MaxRecvWR: s.spec.Depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: s.spec.Inline,
		}})
		if err != nil {
			return err
		}
		s.qps = append(s.qps, qp)
	}
	return nil
}

func (s *side) close() error {
	var errs []error
	for _, qp := range s.qps {
		errs = append(errs, qp.Close())
	}
	if s.mr != nil {
		errs = append(errs, s.mr.Close())
	}
	for _, cq := range []*verbs.CQ{s.send, s.recv} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	if s.ch != nil {
		errs = append(errs, s.ch.Close())
	}
	if s.pd != nil {
		errs = append(errs, s.pd.Close())
	}
	return errors.Join(errs...)
}

func (s *side) addresses() []address {
	list := make([]address, len(s.qps))
	for i, qp := range s.qps {
		list[i] = address{GID: s.gid.GID, QPN: qp.Num(), Addr: s.mr.Addr() + uint64(s.half), RKey: s.mr.RKey()}
	}
	return list
}

// connect takes the QPs to RTS, and posts receives.
func (s *side) connect(peer []address) error {
	if len(peer) != len(s.qps) {
		return fmt.Errorf("the other end has %d QPs, not %d", len(peer), len(s.qps))
	}
	s.peer = peer
	access := verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if s.ctx.Attr().Caps.Has(verbs.CapAtomics) {
		access |= verbs.AccessRemoteAtomic
	}
	reads := uint8(min(16, s.ctx.Attr().MaxQPInitRdAtomic, s.ctx.Attr().MaxQPRdAtomic))
	for i, qp := range s.qps {
		err := qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
		if err != nil {
			return err
		}
		err = qp.Modify(verbs.QPAttr{
			State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: peer[i].QPN, MaxDestRdAtomic: reads, MinRNRTimer: 1,
			AV: verbs.AddressVector{DGID: peer[i].GID, SGIDIndex: uint8(s.gid.Index), HopLimit: 64, IsGlobal: true, Port: 1},
		}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
			verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer)
		if err != nil {
			return err
		}
		err = qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 18, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: reads},
			verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic)
		if err != nil {
			return err
		}
		if s.uses() {
			if err := s.receive(i, s.spec.Depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// uses reports whether the operation uses up receives.
func (s *side) uses() bool { return s.spec.operation() == "send" || s.spec.operation() == "write_imm" }

// receive posts n receives on QP i.
func (s *side) receive(i, n int) error {
	wr := [1]verbs.RecvWR{{}}
	var sge [1]verbs.SGE
	if s.spec.operation() == "send" {
		sge[0] = s.mr.SGE(s.half, s.spec.Size)
		wr[0].SGL = sge[:]
	}
	for range n {
		if _, err := s.qps[i].PostRecv(wr[:]); err != nil {
			return err
		}
	}
	return nil
}

// request is what QP i posts.
func (s *side) request(i int) verbs.SendWR {
	wr := verbs.SendWR{ID: uint64(i), RemoteAddr: s.peer[i].Addr, RKey: s.peer[i].RKey, SGL: []verbs.SGE{s.mr.SGE(0, s.spec.Size)}}
	switch s.spec.operation() {
	case "send":
		wr.Opcode = verbs.OpSend
	case "write":
		wr.Opcode = verbs.OpWrite
	case "write_imm":
		wr.Opcode = verbs.OpWriteWithImm
	case "read":
		wr.Opcode = verbs.OpRead
		return wr
	case "atomic":
		wr.Opcode, wr.CompareAdd = verbs.OpFetchAdd, 1
		return wr
	}
	if s.spec.Size <= s.spec.Inline {
		wr.Flags, wr.Inline, wr.SGL = verbs.SendInline, [][]byte{s.mr.Bytes()[:s.spec.Size]}, nil
	}
	return wr
}

// await polls cq until something has come.
func (s *side) await(cq *verbs.CQ, wcs []verbs.WC) (int, error) {
	var deadline time.Time
	for idle := 0; ; idle++ {
		n, err := poll(cq, wcs)
		if n > 0 || err != nil {
			return n, err
		}
		if err := s.idle(idle, &deadline); err != nil {
			return 0, err
		}
	}
}

// poll fails with the first completion that has failed.
func poll(cq *verbs.CQ, wcs []verbs.WC) (int, error) {
	n, err := cq.Poll(wcs)
	for i := range wcs[:n] {
		err = cmp.Or(err, wcs[i].Err())
	}
	return n, err
}

var errSilent = errors.New("nothing has come for too long")

// idle is called when nothing was there to be polled, for the n-th time in a row. With
// events it sleeps, with every second call, before which the CQs were armed.
func (s *side) idle(n int, deadline *time.Time) error {
	if n == 0 {
		*deadline = time.Now().Add(patience)
	}
	if s.spec.Events {
		if n%2 == 1 {
			return s.ch.Wait(*deadline) // ends with a completion, or at the deadline
		}
		return errors.Join(s.send.Arm(false), s.recv.Arm(false))
	}
	if n%4096 == 4095 && time.Now().After(*deadline) {
		return errSilent
	}
	return nil
}
