package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// pd is a protection domain. The kernel counts what uses it.
type pd struct {
	dev    *device
	handle uint32
	end    ending
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	p, err := d.allocPD()
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (d *device) allocPD() (*pd, error) {
	var out abi.AllocPDOut
	if err := d.commandUdata(abi.CmdAllocPD, abi.BytesOf(&abi.ResponseOnly{}), abi.BytesOf(&out), d.driver.Udata(abi.CmdAllocPD)); err != nil {
		return nil, err
	}
	return &pd{dev: d, handle: out.Handle}, nil
}

func (p *pd) Dealloc() error {
	return p.end.once(func() error {
		return p.dev.command(abi.CmdDeallocPD, abi.BytesOf(&abi.HandleOnly{Handle: p.handle}), nil)
	})
}
