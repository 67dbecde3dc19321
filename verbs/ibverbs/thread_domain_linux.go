//go:build amd64 || arm64

package ibverbs

import "unsafe"

// threadDomain is that of a QP: the library takes no locks when requests are posted to it.
type threadDomain struct {
	td     uintptr // struct ibv_td
	parent uintptr // struct ibv_pd: the parent domain, which joins td to the PD of the QP
}

// maxThreadDomains is how many QPs of a device have thread domains at once, each its own: posts to
// different QPs may overlap, and libmlx5 writes to the doorbell register of a domain without a lock.
// Two of these registers are a page of the card (UAR). All processes share its pages, and the library keeps
// those that it has had, for later domains, until the device is closed. So 32 of them is the most
// that a device takes for this.
const maxThreadDomains = 64

// allocThreadDomain makes a thread domain for a QP, none where the driver has none, or no more. The
// library then takes its locks, which keep the promise as well.
//
// Of other drivers than mlx5 (hns, ionic) polling a CQ changes its QPs under the locks that would not
// be taken, and the promise is not that calls of Poll and PostSend do not overlap.
func (p *pd) allocThreadDomain() (t threadDomain) {
	d := p.dev
	e := &d.extension
	if d.entry.Driver != "mlx5" || e.allocTD == 0 || e.deallocTD == 0 || e.allocParent == 0 {
		return t
	}
	if d.singleThreaded.Add(1) > maxThreadDomains {
		d.singleThreaded.Add(-1)
		return t
	}
	var err error
	if t.td, err = handle(e.allocTD, d.context, uintptr(unsafe.Pointer(new(ibvTDInitAttr)))); err == nil {
		in := &ibvParentDomainInitAttr{pd: p.address, td: t.td}
		t.parent, err = handle(e.allocParent, d.context, uintptr(unsafe.Pointer(in)))
	}
	switch {
	case t.td == 0:
		d.singleThreaded.Add(-1)
	case err != nil, view[ibvTD](t.td).context != d.context, view[ibvPD](t.parent).context != d.context:
		t.free(d)
	}
	return t
}

// free ends with the domain, after its QP. What the library says is busy, because it has not destroyed
// that, stays until the device is closed.
func (t *threadDomain) free(d *device) {
	if t.td == 0 {
		return
	}
	if t.parent == 0 || number(d.lib.deallocPD, t.parent) == 0 {
		if number(d.extension.deallocTD, t.td) == 0 {
			d.singleThreaded.Add(-1)
		}
	}
	*t = threadDomain{}
}
