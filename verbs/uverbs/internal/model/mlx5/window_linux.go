//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// allocMW is uverbs_cmd.c, ib_uverbs_alloc_mw, and mr.c, mlx5_ib_alloc_mw, whose part is struct
// mlx5_ib_alloc_mw.
func (c *ucontext) allocMW(r *frame.Request) unix.Errno {
	m := make([]byte, 8)
	copy(m, r.Driver)
	w := &fabric.Window{Type: r.Core[12], Free: true, QPN: fabric.AnyQP}
	var ok bool
	switch w.PD, ok = lookup[*fabric.PD](c, le.Uint32(r.Core[8:])); {
	case !ok:
		return unix.EINVAL // ib_uverbs_alloc_mw
	case w.Type != fabric.TypeOne && w.Type != fabric.TypeTwo:
		return unix.EINVAL // ib_uverbs_alloc_mw
	case le.Uint32(m) != 0 || m[5] != 0 || le.Uint16(m[6:]) != 0:
		return unix.EOPNOTSUPP // mlx5_ib_alloc_mw: comp_mask, reserved
	}
	if !zero(r.Driver[min(len(m), len(r.Driver)):]) {
		return unix.EOPNOTSUPP // mlx5_ib_alloc_mw: ib_is_udata_cleared
	}
	w.PD.Users++
	w.Handle = c.add(w)
	w.Key = c.device.Next()<<8 | w.Handle*0x35&0xff
	c.device.Windows[w.Key>>8] = w
	return r.Answer(words(w.Handle, w.Key), words(0, 8))
}

func (c *ucontext) deallocMW(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	w, ok := lookup[*fabric.Window](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	w.PD.Users--
	delete(c.device.Windows, w.Key>>8)
	delete(c.objects, handle)
	return 0
}

// changeKey executes a UMR. It changes windows, and no other keys, though a device lets a program
// do that with keys that have umr_en.
func (q *queuePair) changeKey(u *keyChange) fabric.Status {
	m := q.Port.Windows[u.key>>8]
	switch {
	case m == nil || m.PD != q.PD:
		return fabric.WindowBind
	case u.checkFree && !m.Free:
		return fabric.WindowBind
	case u.checkQPN && m.QPN != q.Number:
		return fabric.WindowBind
	case !m.Free && m.Key != u.key: // of a free window the driver may give any key
		return fabric.WindowBind
	case u.setQPN != (m.Type == fabric.TypeTwo):
		return fabric.WindowBind // a window of type 2 is a QP's, and one of type 1 is none's
	case u.setQPN && !u.free && u.qpn != q.Number:
		return fabric.WindowBind
	}
	if u.setKey {
		m.Key = m.Key&^0xff | uint32(u.variant)
	}
	if m.Free = u.free; m.Free {
		m.QPN = fabric.AnyQP
		return ""
	}
	m.QPN, m.Addr, m.Length, m.Access, m.Target = u.qpn, u.addr, u.length, u.access, u.target
	return ""
}
