package uverbs

import (
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// window is a memory window.
type window struct {
	dev     *device
	handle  uint32
	typ     verbs.MWType
	made    uint32        // the key that it was made with
	current atomic.Uint32 // the key that the last bind gave it
	end     ending
}

func (p *pd) AllocMW(typ verbs.MWType) (verbs.MWDriver, error) {
	in := abi.AllocMWIn{PDHandle: p.handle, MWType: uint8(typ)}
	var out abi.AllocMWOut
	err := p.end.use(func() error {
		return p.dev.commandUdata(abi.CmdAllocMW, abi.BytesOf(&in), abi.BytesOf(&out), p.dev.driver.Udata(abi.CmdAllocMW))
	})
	if err != nil {
		return nil, err
	}
	w := &window{dev: p.dev, handle: out.Handle, typ: typ, made: out.RKey}
	w.current.Store(out.RKey)
	return w, nil
}

// RKey is the key that peers use for a window of type 1, and for one of type
// 2 that of which its user makes new ones.
func (w *window) RKey() uint32 {
	if w.typ == verbs.MWType1 {
		return w.current.Load()
	}
	return w.made
}

func (w *window) Key() uint32        { return w.current.Load() }
func (w *window) SetKey(rkey uint32) { w.current.Store(rkey) }

func (w *window) Dealloc() error {
	return w.end.once(func() error {
		return w.dev.command(abi.CmdDeallocMW, abi.BytesOf(&abi.HandleOnly{Handle: w.handle}), nil)
	})
}
