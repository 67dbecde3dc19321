package verbs

import (
	"fmt"
)

// SRQAttr are the properties of an SRQ.
type SRQAttr struct {
	MaxWR  int // receive work requests outstanding
	MaxSGE int
	// Limit raises one EventSRQLimitReached when fewer receives than this
	// are posted, and is then 0 again.
	Limit int
}

// SRQAttrMask says which fields of an SRQAttr count.
type SRQAttrMask uint32

// The SRQ attribute mask bits (enum ib_srq_attr_mask).
const (
	SRQAttrMaxWR SRQAttrMask = 1 << 0
	SRQAttrLimit SRQAttrMask = 1 << 1
)

// SRQ is a receive queue that several QPs share.
type SRQ struct {
	pd     *PD
	drv    SRQDriver
	maxSGE int
	num    uint32 // of an XRC domain
}

// CreateSRQ makes a shared receive queue.
func (pd *PD) CreateSRQ(attr SRQAttr) (*SRQ, error) {
	const op = "create SRQ"
	if err := pd.ctx.checkSRQ(&attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	drv, err := charged(pd.ctx, func() (SRQDriver, error) { return pd.drv.CreateSRQ(&attr) })
	if err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return newSRQ(pd, drv, attr, 0), nil
}

func (c *Context) checkSRQ(attr *SRQAttr) error {
	dev := &c.attr
	switch {
	case !dev.Caps.Has(CapSRQ):
		return ErrUnsupported
	case attr.MaxWR <= 0 || attr.MaxWR > dev.MaxSRQWR, attr.MaxSGE < 0 || attr.MaxSGE > dev.MaxSRQSGE:
		return fmt.Errorf("%w: %d work requests of %d SGEs, the device allows %d of %d",
			ErrInvalid, attr.MaxWR, attr.MaxSGE, dev.MaxSRQWR, dev.MaxSRQSGE)
	case attr.Limit < 0 || attr.Limit > attr.MaxWR:
		return fmt.Errorf("%w: limit %d of %d work requests", ErrInvalid, attr.Limit, attr.MaxWR)
	}
	return nil
}

// newSRQ lists an SRQ as what events may be about.
func newSRQ(pd *PD, drv SRQDriver, attr SRQAttr, num uint32) *SRQ {
	s := &SRQ{pd: pd, drv: drv, maxSGE: attr.MaxSGE, num: num}
	pd.ctx.mu.Lock()
	defer pd.ctx.mu.Unlock()
	pd.ctx.srqs[drv] = s
	return s
}

// Num returns the number by which requests name an SRQ of an XRC domain (SendWR.RemoteSRQ),
// 0 for any other SRQ.
func (s *SRQ) Num() uint32 { return s.num }

// PostRecv hands receive requests to the SRQ, in order, and returns how many
// it took; with an error, the error is about request n. It allocates nothing.
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) {
	wrs, err := fittingRecvs(wrs, s.maxSGE)
	if len(wrs) == 0 {
		return 0, err
	}
	n, postErr := s.drv.PostRecv(wrs)
	if t := s.pd.ctx.trace.Load(); t != nil {
		t.postedRecvs(s.pd.ctx, 0, wrs[:n])
	}
	if postErr != nil {
		return n, postErr
	}
	return n, err
}

// Modify changes the size or the limit, whichever mask names. A device may
// refuse the size with an error that wraps ErrUnsupported.
func (s *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	const op = "modify SRQ"
	most := s.pd.ctx.attr.MaxSRQWR
	switch {
	case mask&^(SRQAttrMaxWR|SRQAttrLimit) != 0:
		return s.pd.ctx.wrap(op, fmt.Errorf("%w: unknown attributes %#x", ErrInvalid, uint32(mask)))
	case mask&SRQAttrMaxWR != 0 && (attr.MaxWR <= 0 || attr.MaxWR > most):
		return s.pd.ctx.wrap(op, fmt.Errorf("%w: %d work requests, the device allows %d", ErrInvalid, attr.MaxWR, most))
	case mask&SRQAttrLimit != 0 && (attr.Limit < 0 || attr.Limit > most):
		return s.pd.ctx.wrap(op, fmt.Errorf("%w: limit %d, the device allows %d", ErrInvalid, attr.Limit, most))
	}
	return s.pd.ctx.wrap(op, s.drv.Modify(attr, mask))
}

// Query returns the present attributes.
func (s *SRQ) Query() (SRQAttr, error) {
	a, err := s.drv.Query()
	return a, s.pd.ctx.wrap("query SRQ", err)
}

// Close destroys the SRQ. The error wraps ErrBusy while QPs use it. Completions of an SRQ of an XRC
// domain that were not polled are discarded.
func (s *SRQ) Close() error {
	err := s.drv.Destroy()
	if destroyed(err) {
		s.pd.ctx.mu.Lock()
		delete(s.pd.ctx.srqs, s.drv)
		s.pd.ctx.mu.Unlock()
	}
	return s.pd.ctx.ended("destroy SRQ", err)
}
