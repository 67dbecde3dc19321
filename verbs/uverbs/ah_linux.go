package uverbs

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// ah is an address handle.
type ah struct {
	dev    *device
	handle uint32
	num    uint32 // what requests call it
	end    ending
}

func (p *pd) CreateAH(av *verbs.AddressVector) (verbs.AHDriver, error) {
	in := createAHIn{pdHandle: p.handle, attr: ahAttr{
		grh: globalRoute{
			dgid: av.DGID, flowLabel: av.FlowLabel, sgidIndex: av.SGIDIndex, hopLimit: av.HopLimit, trafficClass: av.TrafficClass,
		},
		dlid: av.DLID, sl: av.SL, srcPathBits: av.SrcPathBits, staticRate: av.StaticRate, isGlobal: flag(av.IsGlobal), portNum: av.Port,
	}}
	var out createAHOut
	var extra []byte
	err := p.end.use(func() (err error) {
		extra, err = p.dev.commandExtra(cmdCreateAH, bytesOf(&in), bytesOf(&out))
		return err
	})
	if err != nil {
		return nil, err
	}
	a := &ah{dev: p.dev, handle: out.handle, num: p.dev.driver.ahNumber(extra)}
	if a.num == 0 {
		_ = a.Destroy()
		return nil, fmt.Errorf("%w: the driver of this kernel (before 5.15) has no numbers for address handles", verbs.ErrUnsupported)
	}
	return a, nil
}

func (a *ah) number() uint32 { return a.num }

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
