//go:build amd64 || arm64

package ibverbs

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/binding"
)

// window is a memory window.
type window struct {
	pd      *pd
	address uintptr // struct ibv_mw
	typ     verbs.MWType
	made    uint32 // the key that it was made with
	// of type 1, the key that the last bind gave it; written by the QP that has binding, as
	// that of struct ibv_mw
	current atomic.Uint32
	binding binding.Window
	life    lifetime
}

func (p *pd) AllocMW(typ verbs.MWType) (verbs.MWDriver, error) {
	w := &window{pd: p, typ: typ}
	err := p.make(func() error {
		var err error
		if w.address, err = handle(p.dev.ops[opAllocMW], p.address, uintptr(typ)); err != nil {
			return failed("ibv_alloc_mw", err)
		}
		v := view[ibvMW](w.address)
		if v.context != p.dev.context || v.pd != p.address || v.typ != int32(typ) {
			number(p.dev.ops[opDeallocMW], w.address)
			return unknownLayout("ibv_mw")
		}
		w.made = v.rkey
		w.current.Store(v.rkey)
		p.dev.add(w.address, w)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// RKey is the key that peers use for a window of type 1, and for one of type 2 that of which its
// user makes new ones.
func (w *window) RKey() uint32 { return w.current.Load() }

func (w *window) Dealloc() error { return w.pd.dev.during(w.destroy) }

func (w *window) rank() int { return rankMW }

func (w *window) destroy() error {
	d := w.pd.dev
	return w.life.end(func() error {
		d.drop(w.address)
		err := failed("ibv_dealloc_mw", status(d.ops[opDeallocMW], w.address))
		if !d.restore(w.address, w, err) {
			w.pd.life.release()
		}
		return err
	})
}

// bindParts are the window and the region of a bind, which is nil if there is none.
func (q *qp) bindParts(b *verbs.Bind) (w *window, r *region, err error) {
	w, ok := b.MW.Driver().(*window)
	if !ok {
		return nil, nil, fmt.Errorf("%w: memory window of another provider", verbs.ErrInvalid)
	}
	if b.MR != nil {
		if r, ok = b.MR.Driver().(*region); !ok {
			return nil, nil, fmt.Errorf("%w: memory of another provider", verbs.ErrInvalid)
		}
	}
	switch {
	case r == nil && q.dev.entry.Driver != "mlx5":
		// Others read its key without a look.
		return nil, nil, fmt.Errorf("%w: the driver of the library takes no bind without an MR, whatever its length", verbs.ErrInvalid)
	case b.Length > 0 && b.MR.Access()&verbs.AccessMWBind == 0:
		return nil, nil, fmt.Errorf("%w: memory window of an MR that was made without AccessMWBind", verbs.ErrInvalid)
	case w.typ == verbs.MWType2 && b.RKey>>8 != w.made>>8:
		return nil, nil, fmt.Errorf("%w: key %#x, those of this memory window begin as %#x does", verbs.ErrInvalid, b.RKey, w.made)
	}
	return w, r, nil
}

// postBind posts the bind of a window, alone: the library takes that of type 1 by a function of its
// own, and for one of type 2 drivers look at the key that the last bind gave it. The caller holds
// the send lock, and has posted so many requests that give a completion before.
func (q *qp) postBind(wr *verbs.SendWR, giving uint64) (int, error) {
	w, r, err := q.bindParts(wr.Bind)
	if err != nil {
		return 0, err
	}
	if err := w.life.use(); err != nil {
		return 0, err
	}
	defer w.life.release()
	info := ibvMWBindInfo{addr: wr.Bind.Addr, length: wr.Bind.Length, access: uint32(wr.Bind.Access)}
	if r != nil {
		if err := r.life.use(); err != nil {
			return 0, err
		}
		defer r.life.release()
		info.mr = r.address
	}
	// its own completion, or the next
	before, err := w.binding.Take(q, binding.Place{Reset: q.resets.Load(), Count: giving + 1})
	if err != nil {
		return 0, err
	}

	run, id, flags := q.marks.run+1, wr.ID, uint32(wr.Flags)
	marked := !q.completes(wr) && q.marks.mark(id, run, (q.sendLimit+1)/2)
	if marked {
		id, flags = markedID, flags|uint32(verbs.SendSignaled)
	}
	if n := q.giveBind(w, wr.Bind.RKey, id, flags, &info); n != 0 {
		w.binding.GiveBack(q, before)
		if marked {
			q.marks.refused()
		}
		return 0, refused("ibv_post_send", n)
	}
	if marked || q.completes(wr) {
		run = 0
	}
	q.marks.run = run
	return 1, nil
}

// Executed implements binding.Queue: it is known from completions that were polled.
func (q *qp) Executed(p binding.Place) bool {
	return q.resets.Load() != p.Reset || q.failed.Load() || q.sendDone.Load() >= p.Count
}

// giveBind gives the library a bind with that new key, and returns its answer.
func (q *qp) giveBind(w *window, rkey uint32, id uint64, flags uint32, info *ibvMWBindInfo) int32 {
	room := &q.send.room
	room.used = 0
	key := &view[ibvMW](w.address).rkey
	post := call{fn: q.dev.ops[opBindMW], args: [6]uintptr{q.address, w.address}}
	if w.typ == verbs.MWType1 {
		b := in[ibvMWBind](room)
		*b = ibvMWBind{wrID: id, sendFlags: flags, info: *info}
		post.args[2] = uintptr(unsafe.Pointer(b))
	} else {
		to, bad := in[ibvSendWR](room), in[uintptr](room)
		*to = ibvSendWR{wrID: id, opcode: int32(verbs.OpBindMW), sendFlags: flags, bind: ibvBind{mw: w.address, rkey: rkey, info: *info}}
		post = call{fn: q.dev.ops[opPostSend], args: [6]uintptr{q.address, uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(bad))}}
	}
	post.do()
	n := int32(post.result)
	switch {
	case n != 0:
	case w.typ == verbs.MWType1:
		w.current.Store(*key)
	default:
		*key = rkey
	}
	return n
}
