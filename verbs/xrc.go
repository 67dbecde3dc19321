package verbs

import (
	"fmt"
	"os"
)

// XRCDomain is a domain of the extended reliable connected service (XRC, InfiniBand Architecture
// Specification, annex A14). An initiator QP (QPTypeXRCInitiator) is connected to a target QP of
// the domain at the other end, and each of its requests names an SRQ of the domain
// (SendWR.RemoteSRQ): one connection serves all SRQs of a host, also those of other processes that
// share the domain. The PD of the SRQ decides what memory a request reaches.
type XRCDomain struct {
	ctx *Context
	drv XRCDomainDriver
}

// OpenXRCDomain opens the domain of a file: all processes that give a descriptor of the same file,
// which may be empty and is never read, share its target QPs and the numbers of its SRQs. Without a
// file, nil, the domain is this object's alone. The file may be closed afterwards. The error wraps
// ErrUnsupported on a device without CapXRC.
func (c *Context) OpenXRCDomain(file *os.File) (*XRCDomain, error) {
	const op = "open XRC domain"
	d, ok := c.drv.(XRCDriver)
	if !ok || !c.attr.Caps.Has(CapXRC) {
		return nil, c.wrap(op, ErrUnsupported)
	}
	drv, err := charged(c, func() (XRCDomainDriver, error) { return d.OpenXRCDomain(file) })
	if err != nil {
		return nil, c.wrap(op, err)
	}
	return &XRCDomain{ctx: c, drv: drv}, nil
}

// CreateSRQ makes an SRQ of the domain. Its receives complete on cq, whichever target QP the
// messages came by: WC.QPN is the number of that. A message reaches memory of pd alone. SRQ.Num is
// what initiators call it by.
func (d *XRCDomain) CreateSRQ(pd *PD, cq *CQ, attr SRQAttr) (*SRQ, error) {
	const op = "create SRQ"
	if pd == nil || cq == nil || pd.ctx != d.ctx || cq.ctx != d.ctx {
		return nil, d.ctx.wrap(op, fmt.Errorf("%w: an SRQ of an XRC domain needs a PD and a CQ of its device", ErrInvalid))
	}
	if err := d.ctx.checkSRQ(&attr); err != nil {
		return nil, d.ctx.wrap(op, err)
	}
	drv, err := charged(d.ctx, func() (XRCSRQDriver, error) { return d.drv.CreateSRQ(pd.drv, cq.drv, &attr) })
	if err != nil {
		return nil, d.ctx.wrap(op, err)
	}
	return newSRQ(pd, drv, attr, drv.Num()), nil
}

// CreateQP makes a target QP in state RESET. It has no queues: it is there to be connected, with
// Modify, and destroyed. It is destroyed when all who have it open have closed it.
func (d *XRCDomain) CreateQP() (*QP, error) {
	return d.target("create QP", d.drv.CreateQP)
}

// OpenQP opens a target QP of the domain by its number, which another process, or this one, has
// made (ibv_open_qp): to be moved from state to state, asked, and held: as long as it is open it
// stays. The error wraps ErrInvalid if the domain has no such QP.
func (d *XRCDomain) OpenQP(num uint32) (*QP, error) {
	return d.target("open QP", func() (QPDriver, error) { return d.drv.OpenQP(num) })
}

func (d *XRCDomain) target(op string, make func() (QPDriver, error)) (*QP, error) {
	drv, err := charged(d.ctx, make)
	if err != nil {
		return nil, d.ctx.wrap(op, err)
	}
	return &QP{ctx: d.ctx, drv: drv, attr: QPInitAttr{Type: QPTypeXRCTarget}, num: drv.Num()}, nil
}

// Context returns the device of the domain.
func (d *XRCDomain) Context() *Context { return d.ctx }

// Close closes the domain. The error wraps ErrBusy while SRQs or target QPs that were made with
// this object, or opened, are there.
func (d *XRCDomain) Close() error { return d.ctx.ended("close XRC domain", d.drv.Close()) }
