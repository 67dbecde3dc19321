package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

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
	var out allocPDOut
	if err := d.commandExtra(cmdAllocPD, bytesOf(&responseOnly{}), bytesOf(&out), d.driver.extra(cmdAllocPD)); err != nil {
		return nil, err
	}
	return &pd{dev: d, handle: out.handle}, nil
}

func (p *pd) Dealloc() error {
	return p.end.once(func() error {
		return p.dev.command(cmdDeallocPD, bytesOf(&handleOnly{handle: p.handle}), nil)
	})
}
