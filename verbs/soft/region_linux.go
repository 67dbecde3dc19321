package soft

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/internal/random"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/pages"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
)

// region is an MR. One key serves as lkey and as rkey.
type region struct {
	dev    *device
	pd     *pd
	key    uint32
	access verbs.Access
	mem    []byte // what work requests may use
	addr   uint64

	// local says that the lkey is good. Deregister takes it away and then
	// waits for everybody who saw it (see quiesce).
	local atomic.Bool
	// remote is the key while the rkey is good. The peers of other processes
	// learn it in the segments that we share with each (see keyHolders).
	remote atomic.Uint32

	// A window that is bound is a region too: a part of its parent.
	parent  *region
	window  *window
	only    *qp   // the QP for whose peer alone the key is good, nil: all of the PD
	windows users // that are bound to this region

	null    bool   // it has no memory: zeros are read, and what is written is lost
	mapping []byte // nil for memory of the caller
	shared  bool   // the mapping is of fd
	sealed  bool   // nobody can map fd writable, or write to it
	onePeer bool   // fd is closed when a peer has it
	pinner  runtime.Pinner
	told    keyHolders
	fd      int // memfd, -1 if only this process can reach it; guarded by told
}

const remoteWrites = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// forPeers reports whether memory with these rights is for other processes too, as it
// is or by a window.
func forPeers(access verbs.Access) bool { return access.Remote() || access&verbs.AccessMWBind != 0 }

// checkAccess refuses what this memory is not: it is gone with the power.
func checkAccess(access verbs.Access) error {
	if access&verbs.AccessFlushPersistent != 0 {
		return fmt.Errorf("%w: the memory is not persistent", verbs.ErrUnsupported)
	}
	return nil
}

func (p *pd) AllocMR(length int, access verbs.Access, opt verbs.MROptions) (verbs.MRDriver, error) {
	if err := p.dev.faultAt(faultAllocMR); err != nil {
		return nil, err
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	r := &region{dev: p.dev, pd: p, access: access, fd: -1}
	opt.Sparse = opt.Sparse || access&verbs.AccessOnDemand != 0
	var err error
	if forPeers(access) {
		err = r.mapShared(length, opt)
	} else {
		err = r.mapPrivate(length, opt)
	}
	if err != nil {
		return nil, err
	}
	r.setAddr(opt.IOVA)
	if err := p.addRegion(r); err != nil {
		r.free()
		return nil, err
	}
	return &registration{region: r}, nil
}

func (p *pd) RegisterMR(mem []byte, access verbs.Access) (verbs.MRDriver, error) {
	return p.RegisterMRAt(mem, 0, access)
}

// RegisterMRAt is RegisterMR with addresses from iova on, or if that is 0 with those of the memory.
func (p *pd) RegisterMRAt(mem []byte, iova uint64, access verbs.Access) (verbs.MRDriver, error) {
	if err := p.dev.faultAt(faultAllocMR); err != nil {
		return nil, err
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	r := &region{dev: p.dev, pd: p, access: access, fd: -1}
	r.pin(mem, iova)
	if err := p.addRegion(r); err != nil {
		r.free()
		return nil, err
	}
	return &registration{region: r}, nil
}

// pin makes memory of the caller that of the region.
func (r *region) pin(mem []byte, iova uint64) {
	r.mem = mem[:len(mem):len(mem)]
	r.pinner.Pin(&mem[0])
	r.setAddr(iova)
}

// setAddr gives the region addresses from iova on, or if that is 0 those of its memory.
func (r *region) setAddr(iova uint64) {
	r.addr = pages.DeviceAddress(protocol.AddressOf(r.mem), iova, r.access&verbs.AccessZeroBased != 0)
}

// AllocNullMR makes a region without memory.
func (p *pd) AllocNullMR() (verbs.MRDriver, error) {
	r := &region{dev: p.dev, pd: p, access: verbs.AccessLocalWrite, null: true, fd: -1}
	if err := p.addRegion(r); err != nil {
		return nil, err
	}
	return &registration{region: r}, nil
}

// addRegion gives r a key that nobody can guess and makes it good.
func (p *pd) addRegion(r *region) error {
	d := p.dev
	d.keys.Lock()
	defer d.keys.Unlock()
	if d.keys.byKey == nil {
		return verbs.ErrClosed
	}
	if err := mayMake("MRs", len(d.keys.byKey), maxMR); err != nil {
		return err
	}
	for r.key == 0 || d.keys.byKey[r.key] != nil || d.keys.windows[r.key>>8] != nil {
		var b [4]byte
		random.Read(b[:])
		r.key = binary.LittleEndian.Uint32(b[:])
	}
	if err := p.users.add(); err != nil {
		return err
	}
	d.keys.byKey[r.key] = r
	r.local.Store(true)
	if r.access.Remote() {
		r.remote.Store(r.key)
	}
	return nil
}

func (r *region) Bytes() []byte { return r.mem }
func (r *region) Addr() uint64  { return r.addr }
func (r *region) LKey() uint32  { return r.key }

// RKey is 0 where there is no memory that peers could reach.
func (r *region) RKey() uint32 {
	if r.null {
		return 0
	}
	return r.key
}

func (r *region) Deregister() error {
	if err := r.windows.close(); err != nil {
		return err
	}
	return r.end()
}

// end is Deregister of a region that has no windows any more, or whose device is
// closed.
func (r *region) end() error {
	if err := r.stop(); err != nil {
		return err
	}
	r.dispose()
	return nil
}

// stop takes the keys away, and returns when nobody uses the memory any more.
func (r *region) stop() error {
	if !r.local.CompareAndSwap(true, false) {
		return verbs.ErrClosed
	}
	r.invalidate()
	r.dev.keys.Lock()
	delete(r.dev.keys.byKey, r.key)
	r.dev.keys.Unlock()
	r.revoke()
	quiesce()
	return nil
}

// dispose gives back what a stopped region had.
func (r *region) dispose() {
	r.free()
	r.pd.users.done()
}

// invalidate takes the rkey away, not the lkey, as SEND_WITH_INV does.
func (r *region) invalidate() {
	r.remote.Store(0)
	r.told.mu.Lock()
	defer r.told.mu.Unlock()
	for l, place := range r.told.links {
		l.seg.Header.Keys[place].Store(0)
	}
}

// bytes returns the n bytes at addr if all of them are in the region.
func (r *region) bytes(addr uint64, n uint32) ([]byte, bool) {
	off := addr - r.addr
	if off > uint64(len(r.mem)) || uint64(n) > uint64(len(r.mem))-off {
		return nil, false
	}
	return r.mem[off : off+uint64(n)], true
}

// region returns the region of a key, nil if there is none.
func (d *device) region(key uint32) *region {
	d.keys.RLock()
	defer d.keys.RUnlock()
	return d.keys.byKey[key]
}

// localBytes resolves a scatter/gather element. last is a one-entry cache of
// the caller. What it returns may be used until the lock that the caller
// holds (a QP's sendMu or a CQ's pollMu) is released: Deregister takes each
// of them once before it unmaps.
func (p *pd) localBytes(last **region, e *verbs.SGE, need verbs.Access) ([]byte, bool) {
	r := *last
	if r == nil || r.key != e.LKey {
		if r = p.dev.region(e.LKey); r == nil {
			return nil, false
		}
		*last = r
	}
	if !r.local.Load() || r.pd != p || r.access&need != need {
		return nil, false
	}
	return r.bytes(e.Addr, e.Length)
}

// isNull reports whether a scatter/gather element that localBytes refused is of a region without
// memory. last is what localBytes has left there.
func (p *pd) isNull(last *region, e *verbs.SGE) bool {
	return last != nil && last.null && last.key == e.LKey && last.pd == p && last.local.Load()
}

// localOK reports whether all of the local memory may be used.
func (q *qp) localOK(wr *verbs.SendWR, need verbs.Access) bool {
	if wr.Flags&verbs.SendInline != 0 {
		return true
	}
	for i := range wr.SGL {
		if wr.SGL[i].Length == 0 {
			continue
		}
		if _, ok := q.pd.localBytes(&q.sgl, &wr.SGL[i], need); !ok && !q.pd.isNull(q.sgl, &wr.SGL[i]) {
			return false
		}
	}
	return true
}

// gather copies local memory into dst; false if a key, bounds or rights do
// not cover it. It may have copied a part then, into a buffer of the peer
// that a failed request leaves undefined anyway.
func (q *qp) gather(dst []byte, sgl []verbs.SGE) bool {
	for i := range sgl {
		e := &sgl[i]
		if e.Length == 0 {
			continue
		}
		src, ok := q.pd.localBytes(&q.sgl, e, 0)
		if !ok {
			if !q.pd.isNull(q.sgl, e) {
				return false
			}
			clear(dst[:e.Length])
			dst = dst[e.Length:]
			continue
		}
		dst = dst[copy(dst, src):]
	}
	return true
}

// gatherAt fills dst with the payload from byte skip on.
func (q *qp) gatherAt(dst []byte, wr *verbs.SendWR, skip int) bool {
	return gatherAt(q.pd, &q.sgl, dst, wr, skip)
}

func gatherAt(p *pd, last **region, dst []byte, wr *verbs.SendWR, skip int) bool {
	if wr.Flags&verbs.SendInline != 0 {
		for _, b := range wr.Inline {
			if skip >= len(b) {
				skip -= len(b)
				continue
			}
			dst = dst[copy(dst, b[skip:]):]
			skip = 0
		}
		return true
	}
	for i := range wr.SGL {
		e := wr.SGL[i]
		if skip >= int(e.Length) {
			skip -= int(e.Length)
			continue
		}
		src, ok := p.localBytes(last, &e, 0)
		if !ok {
			if !p.isNull(*last, &e) {
				return false
			}
			n := min(len(dst), int(e.Length)-skip)
			clear(dst[:n])
			dst, skip = dst[n:], 0
			continue
		}
		dst = dst[copy(dst, src[skip:]):]
		skip = 0
	}
	return true
}

// scatter copies src into local memory.
func (q *qp) scatter(sgl []verbs.SGE, src []byte) bool {
	return scatter(q.pd, &q.sgl, sgl, 0, src)
}

// scatter copies src to where sgl says, from byte skip on.
func scatter(p *pd, last **region, sgl []verbs.SGE, skip int, src []byte) bool {
	for i := range sgl {
		e := &sgl[i]
		if len(src) == 0 {
			break
		}
		if skip >= int(e.Length) {
			skip -= int(e.Length)
			continue
		}
		if dst, ok := p.localBytes(last, e, verbs.AccessLocalWrite); ok {
			src = src[copy(dst[skip:], src):]
		} else if p.isNull(*last, e) {
			src = src[min(len(src), int(e.Length)-skip):]
		} else {
			return false
		}
		skip = 0
	}
	return len(src) == 0
}

// registration is an MR as package verbs has it: a region, and after Reregister
// another one. Package verbs lets one caller at a time in.
type registration struct {
	*region
	broken bool // Reregister failed after it had taken the region away
}

func (m *registration) Deregister() error {
	if m.broken {
		m.broken = false
		m.region.dispose()
		return nil
	}
	return m.region.Deregister()
}

// Reregister takes the region away from everybody and makes another one of its
// memory, at the same address, or of mem. Its key is a new one.
func (m *registration) Reregister(mem []byte, iova uint64, p verbs.PDDriver, access verbs.Access, mask verbs.MRChange) error {
	old := m.region
	next := &region{dev: old.dev, pd: old.pd, access: old.access, fd: -1}
	if mask&verbs.MRChangePD != 0 {
		next.pd = p.(*pd)
	}
	if mask&verbs.MRChangeAccess != 0 {
		next.access = access
	}
	if err := checkAccess(next.access); err != nil {
		return err
	}
	if err := old.windows.close(); err != nil {
		return err
	}
	if err := old.stop(); err != nil {
		return err
	}
	m.broken = true
	switch {
	case mask&verbs.MRChangeMemory != 0:
		next.pin(mem, iova)
	case old.mapping == nil:
		next.pin(old.mem, 0)
		next.addr = old.addr
	default:
		next.addr = old.addr
		if err := next.takeMapping(old); err != nil {
			return err
		}
	}
	if err := next.pd.addRegion(next); err != nil {
		if next.mapping != nil { // it is old's still
			next.mapping = nil
		}
		next.free()
		return err
	}
	if next.mapping != nil {
		old.mapping = nil
	}
	old.dispose()
	m.region, m.broken = next, false
	return nil
}

// onDemand says that all operations may use memory that has no pages yet: a page comes when one end
// touches it, as with all shared memory. Where there is none left, that is a signal and not an error,
// which AdviseMR can be asked to find out before.
var onDemand = verbs.ODPCaps{
	General: verbs.ODPSupported,
	RC: verbs.ODPSend | verbs.ODPRecv | verbs.ODPWrite | verbs.ODPRead | verbs.ODPAtomic | verbs.ODPSRQRecv |
		verbs.ODPFlush | verbs.ODPAtomicWrite,
	UC: verbs.ODPSend | verbs.ODPRecv | verbs.ODPWrite,
	UD: verbs.ODPSend | verbs.ODPRecv | verbs.ODPSRQRecv,
}

// AdviseMR gives memory to pieces of regions that are paged in on demand, or
// says that there is none.
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

// prefetch does so for the beginning of a piece, and returns how many bytes that were. A region
// stays where it is while the table of keys is held, which is not for long.
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
		// what is there is there for everybody; the caller's own may not be for writing,
		// nor begin with a page
		return e.Length, nil
	}
	mem = mem[:min(len(mem), protocol.PagesAtOnce)]
	return uint32(len(mem)), sys.Populate(protocol.PagesAround(mem))
}
