package soft

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
)

// onDemand says that all operations may use memory that has no pages yet (the bits are those of verbs.ODPCaps): a page comes
// when one end touches it, as with all shared memory. Where there is none left, that is a signal and not an error,
// which AdviseMR can be asked to find out before.
var onDemand = verbs.ODPCaps{General: 1, RC: 0xff, UC: 1 | 2 | 4, UD: 1 | 2 | 32}

// AdviseMR gives memory to pieces of regions that are paged in on demand, or says that there is none.
func (p *pd) AdviseMR(advice verbs.Advice, list []verbs.SGE) error {
	for i := range list {
		for e := list[i]; ; {
			done, err := p.prefetch(&e, advice)
			if err != nil {
				return fmt.Errorf("piece %d: %w", i, err)
			}
			if e.Length -= done; e.Length == 0 {
				break
			}
			e.Addr += uint64(done)
		}
	}
	return nil
}

// prefetch does so for the beginning of a piece, and returns how many bytes that were. A region stays where it is while the
// table of keys is held, which is not for long.
func (p *pd) prefetch(e *verbs.SGE, advice verbs.Advice) (uint32, error) {
	p.dev.keys.RLock()
	defer p.dev.keys.RUnlock()
	r := p.dev.keys.byKey[e.LKey]
	if r == nil || !r.local.Load() || r.pd != p || r.access&verbs.AccessOnDemand == 0 {
		return 0, fmt.Errorf("%w: key %#x is not that of an MR of this PD with AccessOnDemand", verbs.ErrInvalid, e.LKey)
	}
	if advice == verbs.AdvicePrefetchWrite && r.access&verbs.AccessLocalWrite == 0 {
		return 0, fmt.Errorf("%w: the MR of key %#x is not to be written to", verbs.ErrInvalid, e.LKey)
	}
	mem, ok := r.bytes(e.Addr, e.Length)
	if !ok {
		return 0, fmt.Errorf("%w: %d bytes at %#x are not in the MR", verbs.ErrInvalid, e.Length, e.Addr)
	}
	if advice == verbs.AdvicePrefetchNoFault || len(mem) == 0 || r.mapping == nil {
		return e.Length, nil // what is there is there for everybody; the caller's own may not be for writing, nor begin with a page
	}
	mem = mem[:min(len(mem), protocol.PagesAtOnce)]
	return uint32(len(mem)), sys.Populate(protocol.PagesAround(mem))
}
