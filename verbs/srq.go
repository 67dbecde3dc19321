package verbs

import "fmt"

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
	pd  *PD
	drv SRQDriver
}

// CreateSRQ makes a shared receive queue.
func (pd *PD) CreateSRQ(attr SRQAttr) (*SRQ, error) {
	const op = "create SRQ"
	dev := &pd.ctx.attr
	switch {
	case !dev.Caps.Has(CapSRQ):
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	case attr.MaxWR <= 0 || attr.MaxWR > dev.MaxSRQWR, attr.MaxSGE < 0 || attr.MaxSGE > dev.MaxSRQSGE:
		return nil, pd.ctx.wrap(op, fmt.Errorf("%w: %d work requests of %d SGEs, the device allows %d of %d",
			ErrInvalid, attr.MaxWR, attr.MaxSGE, dev.MaxSRQWR, dev.MaxSRQSGE))
	}
	drv, err := pd.drv.CreateSRQ(&attr)
	if err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return &SRQ{pd: pd, drv: drv}, nil
}

// PostRecv hands receive requests to the SRQ and returns how many it took.
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) { return s.drv.PostRecv(wrs) }

// Modify changes the size or the limit.
func (s *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	return s.pd.ctx.wrap("modify SRQ", s.drv.Modify(attr, mask))
}

// Query returns the present attributes.
func (s *SRQ) Query() (SRQAttr, error) {
	a, err := s.drv.Query()
	return a, s.pd.ctx.wrap("query SRQ", err)
}

// Close destroys the SRQ. The error wraps ErrBusy while QPs use it.
func (s *SRQ) Close() error { return s.pd.ctx.wrap("destroy SRQ", s.drv.Destroy()) }
