package verbsperf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// patience is how long nothing may happen.
const patience = 20 * time.Second

// side is one end of a measurement: connected QPs, and memory that is half for
// what is sent and half for what arrives.
type side struct {
	life  context.Context // ends the measurement
	spec  spec
	ctx   *verbs.Context
	place place
	pd    *verbs.PD
	ch    *verbs.CompChannel
	send  *verbs.CQ
	recv  *verbs.CQ
	mr    *verbs.MR
	qps   []*verbs.QP
	conns []rcm.Conn // with -rcm
	peer  hello
	half  int

	receives int // posted on each QP
}

// needs are the capabilities of each operation.
var needs = map[string]verbs.Cap{
	"write_imm": verbs.CapWriteWithImm, "read": verbs.CapRead, "atomic": verbs.CapAtomics,
}

// operation is the test's name without lat and bw.
func (s *spec) operation() string { return s.Test[:strings.LastIndex(s.Test, "_")] }

func newSide(life context.Context, dev *verbs.Context, at place, sp spec) (*side, error) {
	attr := dev.Attr()
	if attr.Transport == verbs.TransportIWARP && !sp.CM {
		return nil, fmt.Errorf("%s is an iWARP device, whose queue pairs are connected with -rcm only", attr.Name)
	}
	if need := needs[sp.operation()]; !attr.Caps.Has(need) {
		return nil, fmt.Errorf("%s on %s: %w", sp.operation(), attr.Name, verbs.ErrUnsupported)
	}
	if err := sp.fits(attr, at.port); err != nil {
		return nil, err
	}
	s := &side{life: life, spec: sp, ctx: dev, place: at, receives: sp.receives(attr), half: sp.half()}
	if err := s.make(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// half is how many bytes each half of the memory has.
func (s *spec) half() int { return max(4096, (s.Size+4095)&^4095) }

func (s *side) make() (err error) {
	if s.pd, err = s.ctx.AllocPD(); err != nil {
		return err
	}
	if s.ch, err = s.ctx.CreateCompChannel(); err != nil {
		return err
	}
	if s.send, err = s.ctx.CreateCQ(verbs.CQAttr{CQE: s.spec.Depth * s.spec.QPs}, s.ch); err != nil {
		return err
	}
	if s.recv, err = s.ctx.CreateCQ(verbs.CQAttr{CQE: s.receives * s.spec.QPs}, s.ch); err != nil {
		return err
	}
	if s.mr, err = s.pd.AllocMR(2*s.half, verbs.AccessLocalWrite|s.access(), verbs.MROptions{}); err != nil {
		return err
	}
	for range s.spec.QPs {
		qp, err := s.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: s.send, RecvCQ: s.recv, Cap: verbs.QPCap{
			MaxSendWR: s.spec.Depth, MaxRecvWR: s.receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: s.spec.Inline,
		}})
		if err != nil {
			return err
		}
		s.qps = append(s.qps, qp)
	}
	return nil
}

// access is what the other end may do.
func (s *side) access() verbs.Access {
	access := verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if s.ctx.Attr().Caps.Has(verbs.CapAtomics) {
		access |= verbs.AccessRemoteAtomic
	}
	return access
}

// fail has all requests end.
func (s *side) fail() {
	for _, qp := range s.qps {
		_ = qp.Fail() // one that is closed has none
	}
}

func (s *side) close() error {
	var errs []error
	for _, conn := range s.conns {
		errs = append(errs, conn.Disconnect())
	}
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

// uses reports whether the operation uses up receives.
func (s *spec) uses() bool { return s.operation() == "send" || s.operation() == "write_imm" }

// ready posts the first receives of QP i.
func (s *side) ready(i int) error {
	if !s.spec.uses() {
		return nil
	}
	return s.receive(i, s.receives)
}

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
	wr := verbs.SendWR{ID: uint64(i), RemoteAddr: s.peer.Addr, RKey: s.peer.RKey, SGL: []verbs.SGE{s.mr.SGE(0, s.spec.Size)}}
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
