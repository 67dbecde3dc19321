//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/pages"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// pd is a protection domain.
type pd struct {
	dev     *device
	address uintptr // struct ibv_pd
	life    lifetime
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	p, err := d.allocPD()
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (d *device) allocPD() (*pd, error) {
	p := &pd{dev: d}
	err := d.during(func() (err error) {
		if p.address, err = handle(d.lib.allocPD, d.context); err == nil {
			d.add(p.address, p)
		}
		return failed("ibv_alloc_pd", err)
	})
	return p, err
}

// make runs what makes something of the PD, which uses the PD from then on.
func (p *pd) make(create func() error) error {
	return p.dev.during(func() error {
		if err := p.life.use(); err != nil {
			return err
		}
		err := create()
		if err != nil {
			p.life.release()
		}
		return err
	})
}

func (p *pd) Dealloc() error {
	return p.dev.during(p.destroy)
}

func (p *pd) rank() int { return rankPD }

func (p *pd) destroy() error {
	return p.life.end(func() error {
		p.dev.drop(p.address)
		err := failed("ibv_dealloc_pd", status(p.dev.lib.deallocPD, p.address))
		p.dev.restore(p.address, p, err)
		return err
	})
}

// region is a memory region.
type region struct {
	pd      *pd
	address uintptr // struct ibv_mr
	mem     []byte
	addr    uint64
	keys    ibvMR

	life  lifetime
	owned []byte // what AllocMR mapped
}

func (p *pd) AllocMR(length int, access verbs.Access, opt verbs.MROptions) (verbs.MRDriver, error) {
	mapped, err := pages.Map(length, opt.HugePages)
	if err != nil {
		return nil, err
	}
	r, err := p.register(&region{pd: p, mem: mapped[:length:length], owned: mapped}, access)
	if err != nil {
		pages.Unmap(mapped)
		return nil, err
	}
	return r, nil
}

// RegisterMR registers memory of the caller. The list of what is open keeps
// it reachable, and Go does not move what is on its heap.
func (p *pd) RegisterMR(mem []byte, access verbs.Access) (verbs.MRDriver, error) {
	r, err := p.register(&region{pd: p, mem: mem}, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (p *pd) register(r *region, access verbs.Access) (*region, error) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(r.mem)))
	r.addr = uint64(start)
	if access&verbs.AccessZeroBased != 0 {
		r.addr %= uint64(pages.Size) // the kernel wants the offset within the page to agree
	}
	err := p.make(func() (err error) {
		r.address, err = handle(p.dev.lib.regMR, p.address, start, uintptr(len(r.mem)), uintptr(r.addr), uintptr(access))
		if err != nil {
			return failed("ibv_reg_mr_iova2", err)
		}
		r.keys = *view[ibvMR](r.address)
		if r.keys.context != p.dev.context || r.keys.pd != p.address || r.keys.length != uintptr(len(r.mem)) {
			number(p.dev.lib.deregMR, r.address)
			return unknownLayout("ibv_mr")
		}
		p.dev.add(r.address, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *region) Bytes() []byte { return r.mem }
func (r *region) Addr() uint64  { return r.addr }
func (r *region) LKey() uint32  { return r.keys.lkey }
func (r *region) RKey() uint32  { return r.keys.rkey }

func (r *region) Deregister() error { return r.pd.dev.during(r.destroy) }

func (r *region) rank() int { return rankMR }

func (r *region) destroy() error {
	d := r.pd.dev
	return r.life.end(func() error {
		d.drop(r.address)
		err := failed("ibv_dereg_mr", status(d.lib.deregMR, r.address))
		if d.entry.DriverID == rdmahost.DriverRXE && errors.Is(err, verbs.ErrInvalid) {
			err = fmt.Errorf("ibv_dereg_mr: %w", verbs.ErrBusy) // it says EINVAL of a region with windows
		}
		if d.restore(r.address, r, err) {
			return err
		}
		r.pd.life.release()
		if err == nil {
			pages.Unmap(r.owned)
		}
		return err
	})
}

// ah is an address handle.
type ah struct {
	pd      *pd
	address uintptr // struct ibv_ah
	life    lifetime
}

func (p *pd) CreateAH(av *verbs.AddressVector) (verbs.AHDriver, error) {
	a := &ah{pd: p}
	attr := ahAttr(av)
	err := p.make(func() (err error) {
		if a.address, err = handle(p.dev.lib.createAH, p.address, uintptr(unsafe.Pointer(&attr))); err == nil {
			p.dev.add(a.address, a)
		}
		return failed("ibv_create_ah", err)
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (a *ah) Destroy() error { return a.pd.dev.during(a.destroy) }

func (a *ah) rank() int { return rankAH }

func (a *ah) destroy() error {
	d := a.pd.dev
	return a.life.end(func() error {
		d.drop(a.address)
		err := failed("ibv_destroy_ah", status(d.lib.destroyAH, a.address))
		if !d.restore(a.address, a, err) {
			a.pd.life.release()
		}
		return err
	})
}

// ahAttr translates an address.
func ahAttr(av *verbs.AddressVector) ibvAHAttr {
	return ibvAHAttr{
		grh: ibvGlobalRoute{
			dgid: av.DGID, flowLabel: av.FlowLabel, sgidIndex: av.SGIDIndex, hopLimit: av.HopLimit, trafficClass: av.TrafficClass,
		},
		dlid: av.DLID, sl: av.SL, srcPathBits: av.SrcPathBits, staticRate: av.StaticRate, isGlobal: flag(av.IsGlobal), portNum: av.Port,
	}
}

func addressVector(a *ibvAHAttr) verbs.AddressVector {
	return verbs.AddressVector{
		DGID: a.grh.dgid, SGIDIndex: a.grh.sgidIndex, FlowLabel: a.grh.flowLabel, HopLimit: a.grh.hopLimit, TrafficClass: a.grh.trafficClass,
		DLID: a.dlid, SL: a.sl, SrcPathBits: a.srcPathBits, StaticRate: a.staticRate, IsGlobal: a.isGlobal != 0, Port: a.portNum,
	}
}

// flag is a bool in a structure of the library.
func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
