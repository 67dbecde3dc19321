//go:build amd64 || arm64

package fabric

// A Window is a key that leads to a part of what another key covers.
type Window struct {
	Handle uint32
	PD     *PD
	Type   byte
	Key    uint32 // the upper 24 bits for ever, and those that it has now
	Free   bool   // leads nowhere
	QPN    uint32 // that may use it, or AnyQP
	Addr   uint64 // as requests name it
	Length uint64
	Access uint32
	Target Scatter
}

// The types of windows (IB_UVERBS_MW_TYPE_*).
const (
	TypeOne = 1
	TypeTwo = 2
)

// window returns the window of a key that q may use or take away, or nil.
func (q *QP) window(key uint32) *Window {
	w := q.Port.Windows[key>>8]
	if w == nil || w.Key != key || w.Free || w.PD != q.PD || w.QPN != AnyQP && w.QPN != q.Number {
		return nil
	}
	return w
}

// resolveRemote checks a key of a peer's request, of a region or of a window. What a window leads
// to is looked up with each use, as odp.c of mlx5 does, pagefault_single_data_segment.
func (q *QP) resolveRemote(key uint32, addr, size uint64, access uint32) (piece, bool) {
	if q.Port.Windows[key>>8] == nil {
		return q.Port.resolve(q.PD, key, addr, size, access)
	}
	w := q.window(key)
	if w == nil || w.Access&access != access || addr < w.Addr || addr-w.Addr > w.Length || size > w.Length-(addr-w.Addr) {
		return piece{}, false
	}
	local := uint32(0)
	if access != AccessRemoteRead {
		local = AccessLocalWrite
	}
	return q.Port.resolve(q.PD, w.Target.Key, w.Target.Addr+(addr-w.Addr), size, local)
}

// takeAway makes the window of a key free that a SEND names, and says whether it was one that q's
// peer may name. Only windows of type 2 are.
func (q *QP) takeAway(key uint32) bool {
	w := q.window(key)
	if w == nil || w.Type != TypeTwo {
		return false
	}
	w.Free, w.QPN = true, AnyQP
	return true
}
