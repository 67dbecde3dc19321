package uverbs

import (
	"slices"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/binding"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// window is a memory window.
type window struct {
	dev     *device
	handle  uint32
	typ     verbs.MWType
	made    uint32        // the key that it was made with
	current atomic.Uint32 // the key that the last bind gave it; written by the QP that has binding
	binding binding.Window
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
	p.dev.windows.Add(1)
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
		err := w.dev.command(abi.CmdDeallocMW, abi.BytesOf(&abi.HandleOnly{Handle: w.handle}), nil)
		if destroyed(err) {
			w.dev.windows.Add(-1)
		}
		return err
	})
}

// taken is a window that a QP binds with a request that it is about to post.
type taken struct {
	index  int // of the request
	window *window
	before binding.Bind
}

// takeWindows takes the windows that requests bind. It returns how many of the requests may be
// posted, and why no more. The caller holds the send lock.
func (q *qp) takeWindows(wrs []verbs.SendWR) (int, error) {
	q.send.taken = q.send.taken[:0]
	giving := q.send.posted
	for i := range wrs {
		place := giving + 1 // of its own completion, or of the next
		if q.signalAll || wrs[i].Flags&verbs.SendSignaled != 0 {
			giving = place
		}
		if wrs[i].Opcode != verbs.OpBindMW {
			continue
		}
		w, ok := wrs[i].Bind.MW.Driver().(*window)
		if !ok {
			continue // the driver refuses it
		}
		before, err := w.binding.Take(q, binding.Place{Reset: q.resets.Load(), Count: uint64(place)})
		if err != nil {
			return i, err
		}
		q.send.taken = append(q.send.taken, taken{i, w, before})
	}
	return len(wrs), nil
}

// giveBackWindows is called when n of those requests were posted.
func (q *qp) giveBackWindows(n int) {
	for _, t := range slices.Backward(q.send.taken) {
		if t.index >= n {
			t.window.binding.GiveBack(q, t.before)
		}
	}
	q.send.taken = q.send.taken[:0]
}

// Executed implements binding.Queue: it is known from completions that were polled. No more
// of them are missing than the queue has room for, so the counters, which are free running,
// may have come round.
func (q *qp) Executed(p binding.Place) bool {
	missing := uint32(p.Count) - q.sendDone.Load()
	return q.resets.Load() != p.Reset || q.failed.Load() || missing == 0 || missing > uint32(q.sendLimit)+1
}
