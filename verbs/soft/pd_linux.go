package soft

import (
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// pd is a protection domain: what MRs and QPs have in common.
type pd struct {
	dev  *device
	refs atomic.Int64 // MRs, QPs and SRQs
}

func (d *device) AllocPD() (verbs.PDDriver, error) { return &pd{dev: d}, nil }

func (p *pd) Dealloc() error {
	if p.refs.Load() != 0 {
		return verbs.ErrBusy
	}
	return nil
}
