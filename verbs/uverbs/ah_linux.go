package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// ah is an address handle.
type ah struct {
	dev    *device
	handle uint32
	driver any // what the driver has made of it
	end    ending
}

func (p *pd) CreateAH(av *verbs.AddressVector) (verbs.AHDriver, error) {
	in := abi.CreateAHIn{PDHandle: p.handle, Attr: abi.AHAttr{
		GRH: abi.GlobalRoute{
			DGID: av.DGID, FlowLabel: av.FlowLabel, SGIDIndex: av.SGIDIndex, HopLimit: av.HopLimit, TrafficClass: av.TrafficClass,
		},
		DLID: av.DLID, SL: av.SL, SrcPathBits: av.SrcPathBits, StaticRate: av.StaticRate, IsGlobal: flag(av.IsGlobal), PortNum: av.Port,
	}}
	a := &ah{dev: p.dev}
	made := false
	err := p.end.use(func() (err error) {
		a.driver, err = p.dev.driver.CreateAH(av, func(u driver.Udata) error {
			var out abi.CreateAHOut
			err := p.dev.commandUdata(abi.CmdCreateAH, abi.BytesOf(&in), abi.BytesOf(&out), u)
			a.handle, made = out.Handle, err == nil
			return err
		})
		return err
	})
	if err != nil {
		if made {
			_ = a.Destroy() // the first error is the one to tell
		}
		return nil, err
	}
	return a, nil
}

func (a *ah) DriverAH() any { return a.driver }

func (a *ah) Destroy() error {
	return a.end.once(func() error {
		return a.dev.command(abi.CmdDestroyAH, abi.BytesOf(&abi.HandleOnly{Handle: a.handle}), nil)
	})
}

// flag is a bool in a structure of the kernel.
func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
