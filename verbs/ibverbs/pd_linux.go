//go:build amd64 || arm64

package ibverbs

import (
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
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
