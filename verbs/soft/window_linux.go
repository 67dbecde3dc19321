package soft

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/internal/random"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// window is a memory window. What it is bound to is a region of its own, with a
// part of the memory of another one, its parent, and a key that is good for peers
// only.
//
// Lock order: sendMu or pollMu, mu, device.keys, the told of the bound region, the
// told of its parent.
type window struct {
	dev  *device
	pd   *pd
	typ  verbs.MWType
	made uint32        // the key that it was made with; the upper 24 bits stay
	last atomic.Uint32 // that of the last bind

	mu    sync.Mutex
	bound *region // guarded by mu: nil if it covers nothing
	freed bool    // guarded by mu
}

// maxMW is the number of windows of a device.
const maxMW = 1 << 20

func (p *pd) AllocMW(typ verbs.MWType) (verbs.MWDriver, error) {
	w := &window{dev: p.dev, pd: p, typ: typ}
	d := p.dev
	d.keys.Lock()
	defer d.keys.Unlock()
	if d.keys.byKey == nil {
		return nil, verbs.ErrClosed
	}
	if err := mayMake("memory windows", len(d.keys.windows), maxMW); err != nil {
		return nil, err
	}
	for w.made == 0 || d.keys.taken(w.made) {
		var b [4]byte
		random.Read(b[1:])
		w.made = binary.LittleEndian.Uint32(b[:])
	}
	if err := p.users.add(); err != nil {
		return nil, err
	}
	w.last.Store(w.made)
	d.keys.windows[w.made>>8] = w
	return w, nil
}

// taken reports whether one of the 256 keys that a window may have is in use.
func (k *keyTable) taken(key uint32) bool {
	if k.windows[key>>8] != nil {
		return true
	}
	for low := range uint32(1 << 8) {
		if k.byKey[key&^0xff|low] != nil {
			return true
		}
	}
	return false
}

// RKey is the key that peers use for a window of type 1, and for one of type 2
// that of which its user makes new ones.
func (w *window) RKey() uint32 {
	if w.typ == verbs.MWType1 {
		return w.last.Load()
	}
	return w.made
}

func (w *window) Dealloc() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed {
		return verbs.ErrClosed
	}
	w.freed = true
	w.unbind()
	w.dev.keys.Lock()
	delete(w.dev.keys.windows, w.made>>8)
	w.dev.keys.Unlock()
	w.pd.users.done()
	return nil
}

// bind does what a BIND_MW of q says; false if that is not allowed (InfiniBand
// Architecture Specification, release 1.4, section 10.6.7.2).
func (w *window) bind(q *qp, b *verbs.Bind) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed || w.pd != q.pd {
		return false
	}
	key := b.RKey
	if w.typ == verbs.MWType1 {
		last := w.last.Load()
		key = last&^0xff | (last+1)&0xff
		if b.Length == 0 {
			w.unbind()
			w.last.Store(key)
			return true
		}
	}
	r := w.part(q, b, key)
	if r == nil || r.parent.windows.add() != nil {
		return false
	}
	w.unbind()
	if !w.dev.addKey(r) {
		r.parent.windows.done()
		return false
	}
	w.bound = r
	w.last.Store(key)
	return true
}

// attemptBind executes a BIND_MW. Like LOCAL_INV, the peer has no part in it.
func (q *qp) attemptBind(wr *verbs.SendWR) (progress, outcome) {
	w, ok := wr.Bind.MW.Driver().(*window)
	if !ok || !w.bind(q, wr.Bind) {
		return fails(verbs.WCMWBindErr, protocol.FaultGone)
	}
	return finished, outcome{}
}

// part makes the region that b describes, with key; nil if it must not be. The window
// is of the QP's PD.
func (w *window) part(q *qp, b *verbs.Bind, key uint32) *region {
	if b.MR == nil {
		return nil
	}
	if w.typ == verbs.MWType2 && (w.bound != nil || key>>8 != w.made>>8 || key == w.last.Load()) {
		return nil
	}
	parent := w.dev.region(b.MR.LKey())
	switch {
	case parent == nil || parent.parent != nil || parent.pd != q.pd || parent.access&verbs.AccessMWBind == 0:
		return nil
	case b.Access&remoteWrites != 0 && parent.access&verbs.AccessLocalWrite == 0, b.Access&^protocol.RemoteRights != 0:
		return nil
	case b.Length == 0, b.Addr < parent.addr, b.Addr-parent.addr > uint64(len(parent.mem)),
		b.Length > uint64(len(parent.mem))-(b.Addr-parent.addr):
		return nil
	}
	r := &region{dev: w.dev, pd: w.pd, key: key, access: b.Access, fd: -1, addr: b.Addr, parent: parent, window: w}
	r.mem = parent.mem[b.Addr-parent.addr:][:b.Length:b.Length]
	if w.typ == verbs.MWType2 {
		r.only = q
	}
	return r
}

// addKey makes a bound region good; false if the device is closed. Nobody else has
// the key: it is one of the window's.
func (d *device) addKey(r *region) bool {
	d.keys.Lock()
	defer d.keys.Unlock()
	if d.keys.byKey == nil {
		return false
	}
	d.keys.byKey[r.key] = r
	r.remote.Store(r.key)
	return true
}

// unbind takes the key away. mu is held.
func (w *window) unbind() {
	r := w.bound
	if r == nil {
		return
	}
	w.bound = nil
	r.invalidate()
	w.dev.keys.Lock()
	delete(w.dev.keys.byKey, r.key)
	w.dev.keys.Unlock()
	r.revoke()
	r.parent.windows.done()
}

// takeAway unbinds the window if r is what it is bound to still.
func (w *window) takeAway(r *region) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bound == r {
		w.unbind()
	}
}

// dropWindows unbinds the windows of type 2 that were bound by q.
func (d *device) dropWindows(q *qp) {
	d.keys.RLock()
	var list []*region
	for _, w := range d.keys.windows {
		if r := d.keys.byKey[w.last.Load()]; r != nil && r.only == q {
			list = append(list, r)
		}
	}
	d.keys.RUnlock()
	for _, r := range list {
		r.window.takeAway(r)
	}
}

// attemptInvalidate executes a LOCAL_INV.
func (q *qp) attemptInvalidate(wr *verbs.SendWR) (progress, outcome) {
	if !q.takeKey(wr.InvalidateRKey) {
		return fails(verbs.WCLocQPOpErr, protocol.FaultGone)
	}
	return finished, outcome{}
}

// takeKey takes the key of a region or of a window away, for LOCAL_INV and
// SEND_WITH_INV; false if q may not do that. Windows of type 1 are only bound anew.
func (q *qp) takeKey(key uint32) bool {
	r := q.dev.region(key)
	switch {
	case r == nil || r.pd != q.pd:
		return false
	case r.window == nil:
		r.invalidate()
		return true
	case r.only != q:
		return false
	}
	r.window.takeAway(r)
	return true
}

// lets reports whether the peer of q may use the key of the region.
func (r *region) lets(q *qp) bool {
	return r.pd == q.pd && (r.only == nil || r.only == q) && r.remote.Load() == r.key
}
