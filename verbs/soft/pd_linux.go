package soft

import (
	"github.com/seed-b9b531af/ramjet/verbs"
)

// pd is a protection domain: what MRs and QPs have in common.
type pd struct {
	dev   *device
	users users // MRs, QPs and SRQs
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	p := &pd{dev: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, verbs.ErrClosed
	}
	d.pds[p] = struct{}{}
	return p, nil
}

func (p *pd) Dealloc() error {
	if err := p.users.close(); err != nil {
		return err
	}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	delete(p.dev.pds, p)
	return nil
}
