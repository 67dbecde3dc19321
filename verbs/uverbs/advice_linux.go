package uverbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// scatterEntry is struct ib_uverbs_sge (rdma/ib_user_verbs.h).
type scatterEntry struct {
	addr         uint64
	length, lkey uint32
}

// maxAdvised is how many pieces a page has room for.
const maxAdvised = (abi.PageOut - abi.PageIn) / 16

// AdviseMR tells the kernel of memory that is paged in on demand.
func (p *pd) AdviseMR(advice verbs.Advice, list []verbs.SGE) error {
	for len(list) > 0 {
		n := min(len(list), maxAdvised)
		if err := p.end.use(func() error { return p.dev.advise(p.handle, advice, list[:n]) }); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func (d *device) advise(pd uint32, advice verbs.Advice, list []verbs.SGE) error {
	err := d.method("ADVISE_MR", func(page []byte) abi.Call { return layAdvice(page, pd, advice, list) }, nil)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM), errors.Is(err, unix.EFAULT):
		// Of the PD there is no such MR, or one that is pinned; it has not that right; or it is
		// shorter. No limit of the process explains that, so the number is not wrapped.
		return fmt.Errorf("%w: %v", verbs.ErrInvalid, err)
	}
	return err
}

// layAdvice lays the call out on a page. The kernel is to return when it has done it.
func layAdvice(page []byte, pd uint32, advice verbs.Advice, list []verbs.SGE) abi.Call {
	call := abi.Call{Page: page, Object: abi.ObjectMR, Method: abi.MethodAdviseMR}
	call.Handle(abi.AttrAdvisePD, uint64(pd))
	call.Constant(abi.AttrAdvice, uint64(advice))
	call.Constant(abi.AttrAdviseFlags, abi.AdviseFlush)
	for i, e := range list {
		*abi.ViewAt[scatterEntry](page, abi.PageIn+i*abi.SizeOf[scatterEntry]()) = scatterEntry{e.Addr, e.Length, e.LKey}
	}
	call.In(abi.AttrAdviseList, abi.PageIn, len(list)*abi.SizeOf[scatterEntry]())
	return call
}

// takesAdvice finds out whether the driver of the device does, by an MR that is none. The PD is one,
// or the kernel would say so before it asks the driver.
func (d *device) takesAdvice() bool {
	p, err := d.allocPD()
	if err != nil {
		return false
	}
	defer p.Dealloc()
	return has(d.advise(p.handle, verbs.AdvicePrefetch, make([]verbs.SGE, 1)))
}
