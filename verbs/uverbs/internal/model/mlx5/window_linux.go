//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A window is a key that leads to a part of what another key covers. Requests change it (UMR), and may
// not change any other key, though a device lets a program do that with keys that have umr_en.
type window struct {
	handle uint32
	pd     *protectionDomain
	typ    byte
	key    uint32 // the upper 24 bits for ever, and those that it has now
	free   bool   // leads nowhere
	qpn    uint32 // that may use it, or anyQP
	addr   uint64 // as requests name it
	length uint64
	access uint32
	target scatter
}

const (
	typeOne = 1 // IB_UVERBS_MW_TYPE_1
	typeTwo = 2
)

// allocMW is uverbs_cmd.c, ib_uverbs_alloc_mw, and mr.c, mlx5_ib_alloc_mw, whose part is struct
// mlx5_ib_alloc_mw.
func (c *ucontext) allocMW(r *frame.Request) unix.Errno {
	m := make([]byte, 8)
	copy(m, r.Driver)
	w := &window{typ: r.Core[12], free: true, qpn: anyQP}
	var ok bool
	switch w.pd, ok = lookup[*protectionDomain](c, le.Uint32(r.Core[8:])); {
	case !ok:
		return unix.EINVAL // ib_uverbs_alloc_mw
	case w.typ != typeOne && w.typ != typeTwo:
		return unix.EINVAL // ib_uverbs_alloc_mw
	case le.Uint32(m) != 0 || m[5] != 0 || le.Uint16(m[6:]) != 0:
		return unix.EOPNOTSUPP // mlx5_ib_alloc_mw: comp_mask, reserved
	}
	if !zero(r.Driver[min(len(m), len(r.Driver)):]) {
		return unix.EOPNOTSUPP // mlx5_ib_alloc_mw: ib_is_udata_cleared
	}
	w.pd.users++
	w.handle = c.add(w)
	w.key = c.device.next()<<8 | w.handle*0x35&0xff
	c.device.windows[w.key>>8] = w
	return r.Answer(words(w.handle, w.key), words(0, 8))
}

func (c *ucontext) deallocMW(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	w, ok := lookup[*window](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	w.pd.users--
	delete(c.device.windows, w.key>>8)
	delete(c.objects, handle)
	return 0
}

// named returns the window of a key that q may use or take away, or nil.
func (q *queuePair) named(key uint32) *window {
	w := q.device().windows[key>>8]
	if w == nil || w.key != key || w.free || w.pd != q.pd || w.qpn != anyQP && w.qpn != q.qpn {
		return nil
	}
	return w
}

// resolveRemote checks a key of a peer's request, of a region or of a window. What a window leads to is looked
// up with each use, as odp.c does, pagefault_single_data_segment.
func (q *queuePair) resolveRemote(key uint32, addr, size uint64, access uint32) (piece, bool) {
	d := q.device()
	if d.windows[key>>8] == nil {
		return d.resolve(q.pd, key, addr, size, access)
	}
	w := q.named(key)
	if w == nil || w.access&access != access || addr < w.addr || addr-w.addr > w.length || size > w.length-(addr-w.addr) {
		return piece{}, false
	}
	local := uint32(0)
	if access != accessRemoteRead {
		local = accessLocalWrite
	}
	return d.resolve(q.pd, w.target.key, w.target.addr+(addr-w.addr), size, local)
}

// changeKey executes a UMR.
func (q *queuePair) changeKey(w *workRequest) syndrome {
	u := w.keyChange
	m := q.device().windows[u.key>>8]
	switch {
	case m == nil || m.pd != q.pd:
		return windowBind
	case u.checkFree && !m.free:
		return windowBind
	case u.checkQPN && m.qpn != q.qpn:
		return windowBind
	case !m.free && m.key != u.key: // of a free window the driver may give any key
		return windowBind
	case u.setQPN != (m.typ == typeTwo):
		return windowBind // a window of type 2 is a QP's, and one of type 1 is none's
	case u.setQPN && !u.free && u.qpn != q.qpn:
		return windowBind
	}
	if u.setKey {
		m.key = m.key&^0xff | uint32(u.variant)
	}
	if m.free = u.free; m.free {
		m.qpn = anyQP
		return 0
	}
	m.qpn, m.addr, m.length, m.access, m.target = u.qpn, u.addr, u.length, u.access, u.target
	return 0
}

// takeAway makes the window of a key free that a SEND names, and says whether it was one that q's peer may name. Only
// windows of type 2 are (mlx5_ib_alloc_mw: en_rinval).
func (q *queuePair) takeAway(key uint32) bool {
	w := q.named(key)
	if w == nil || w.typ != typeTwo {
		return false
	}
	w.free, w.qpn = true, anyQP
	return true
}
