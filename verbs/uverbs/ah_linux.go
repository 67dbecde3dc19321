package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
)

// ah is an address handle.
type ah struct {
	dev    *device
	handle uint32
	driver any // what the driver has made of it
	end    ending
}

func (p *pd) CreateAH(av *verbs.AddressVector) (verbs.AHDriver, error) {
	in := createAHIn{pdHandle: p.handle, attr: ahAttr{
		grh: globalRoute{
			dgid: av.DGID, flowLabel: av.FlowLabel, sgidIndex: av.SGIDIndex, hopLimit: av.HopLimit, trafficClass: av.TrafficClass,
		},
		dlid: av.DLID, sl: av.SL, srcPathBits: av.SrcPathBits, staticRate: av.StaticRate, isGlobal: flag(av.IsGlobal), portNum: av.Port,
	}}
	a := &ah{dev: p.dev}
	made := false
	err := p.end.use(func() (err error) {
		a.driver, err = p.dev.driver.createAH(av, func(e extra) error {
			var out createAHOut
			err := p.dev.commandExtra(cmdCreateAH, bytesOf(&in), bytesOf(&out), e)
			a.handle, made = out.handle, err == nil
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

func (a *ah) made() any { return a.driver }

func (a *ah) Destroy() error {
	return a.end.once(func() error {
		return a.dev.command(cmdDestroyAH, bytesOf(&handleOnly{handle: a.handle}), nil)
	})
}

// flag is a bool in a structure of the kernel.
func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
