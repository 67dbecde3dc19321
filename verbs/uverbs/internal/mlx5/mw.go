//go:build amd64 || arm64

package mlx5

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// A memory window is a key of the device that leads to another one: to a part of the memory of an
// MR's. The kernel makes it free, for the PD (mlx5_ib_alloc_mw). BIND_MW and LOCAL_INV are requests
// that change it (UMR, user mode memory registration), as set_bind_wr of rdma-core's
// providers/mlx5/qp.c writes them:
//
//	segment                                     bytes
//	struct mlx5_wqe_ctrl_seg, with the key      16
//	struct mlx5_wqe_umr_ctrl_seg                48   what to check, which fields of the next to take
//	struct mlx5_wqe_mkey_context_seg            64   the fields
//	struct mlx5_wqe_umr_klm_seg, and zeros      64   of BIND_MW: where the key leads
//
// A window of type 2 is bound if it is free, to the QP, and that QP alone makes it free again. One
// of type 1 is bound as it is. The device looks at what the key leads to when a peer uses it, and
// knows nothing of the right to be bound: that is checked here. The kernel does not know what is
// bound: an MR with a window can be closed, and then the window leads nowhere.
const (
	umrControl   = 48
	umrKey       = 64
	umrTarget    = 64
	invalidation = segmentSize + umrControl + umrKey
	binding      = invalidation + umrTarget
	maxWindow    = 1 << 31 // bytes
)

// The flags and the mask of struct mlx5_wqe_umr_ctrl_seg (MLX5_WQE_UMR_CTRL_*).
const (
	umrInline    = 1 << 7 // the target is in the WQE
	umrCheckFree = 1 << 5
	umrOffset    = 1 << 4 // of the target in the list of the key's: 0
	umrCheckQPN  = 1 << 3

	umrTargets = 4 // klm_octowords of a target: it takes the room of four

	maskFree   = 1 << 29
	maskKey    = 1 << 13 // the lower byte
	maskQPN    = 1 << 14
	maskRights = 1<<18 | 1<<19 | 1<<20 | 1<<21 // local write, remote read, remote write, atomic
	maskRange  = 1<<0 | 1<<6                   // length, start
)

// Fields of struct mlx5_wqe_mkey_context_seg.
const (
	keyFree   = 1 << 6
	keyAtomic = 1 << 6
	keyWrite  = 1 << 5
	keyRead   = 1 << 4
	anyQP     = 0xffffff
)

// keySize is how many bytes the WQE of a BIND_MW or LOCAL_INV has.
func (q *qp) keySize(wr *verbs.SendWR) (int, error) {
	if wr.Opcode == verbs.OpLocalInv {
		return invalidation, nil
	}
	const rights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	b := wr.Bind
	switch _, ok := b.MW.Driver().(driver.Window); {
	case !ok:
		return 0, fmt.Errorf("%w: memory window of another provider", verbs.ErrInvalid)
	case b.MW.Type() == verbs.MWType1 && b.Length == 0:
		return invalidation, nil
	case b.Length == 0 || b.Length > maxWindow:
		return 0, fmt.Errorf("%w: memory window of %d bytes, a ConnectX has 1 to %d", verbs.ErrInvalid, b.Length, maxWindow)
	case b.MW.Type() == verbs.MWType2 && b.RKey>>8 != b.MW.RKey()>>8:
		return 0, fmt.Errorf("%w: key %#x, those of this memory window begin as %#x does", verbs.ErrInvalid, b.RKey, b.MW.RKey())
	case b.Access&^rights != 0:
		return 0, fmt.Errorf("%w: memory window with %#x, which are no rights of a peer", verbs.ErrInvalid, uint(b.Access))
	case b.MR.Access()&verbs.AccessMWBind == 0:
		return 0, fmt.Errorf("%w: memory window of an MR that was made without AccessMWBind", verbs.ErrInvalid)
	case b.Access&^verbs.AccessRemoteRead != 0 && b.MR.Access()&verbs.AccessLocalWrite == 0:
		return 0, fmt.Errorf("%w: memory window to write to an MR that was made without AccessLocalWrite", verbs.ErrInvalid)
	}
	return binding, nil
}

// putKeyChange writes the segments of a BIND_MW or LOCAL_INV behind the first, which are all of b,
// and returns the key that it changes. Of that the device takes the upper 24 bits.
func (q *qp) putKeyChange(b []byte, wr *verbs.SendWR) (key uint32) {
	if wr.Opcode == verbs.OpLocalInv {
		putKey(b, &keyContext{typ: verbs.MWType2, qpn: anyQP})
		return wr.InvalidateRKey
	}
	bind := wr.Bind
	key = bind.MW.RKey()
	c := keyContext{typ: bind.MW.Type(), variant: byte(bind.RKey), qpn: q.number, addr: bind.Addr, length: bind.Length, access: bind.Access}
	if bind.Length > 0 {
		c.lkey = bind.MR.LKey()
	}
	if c.typ == verbs.MWType1 {
		c.variant, c.qpn = byte(key)+1, anyQP
		bind.MW.Driver().(driver.Window).SetKey(key&^0xff | uint32(c.variant))
	}
	putKey(b, &c)
	return key
}

// keyContext is what the key of a window becomes.
type keyContext struct {
	typ     verbs.MWType
	variant byte   // the lower byte of the key
	qpn     uint32 // whose peer may use it
	addr    uint64
	length  uint64 // 0: it is free
	access  verbs.Access
	lkey    uint32
}

// keyRights are the rights of a key, by those of a peer.
var keyRights = [...]struct {
	right verbs.Access
	bit   byte
}{{verbs.AccessRemoteWrite, keyWrite}, {verbs.AccessRemoteRead, keyRead}, {verbs.AccessRemoteAtomic, keyAtomic}}

// putKey writes the segments that change a key.
func putKey(b []byte, c *keyContext) {
	clear(b)
	flags, mask := byte(umrInline|umrOffset), uint64(maskFree|maskKey)
	if c.typ == verbs.MWType2 {
		mask |= maskQPN
		if c.length > 0 {
			flags |= umrCheckFree
		} else {
			flags |= umrCheckQPN
		}
	}
	key := b[umrControl:]
	be.PutUint32(key[4:], c.qpn<<8|uint32(c.variant))
	if c.length == 0 {
		key[0] = keyFree
	} else {
		mask |= maskRights | maskRange
		be.PutUint16(b[4:], umrTargets)
		for _, r := range keyRights {
			if c.access&r.right != 0 {
				key[2] |= r.bit
			}
		}
		be.PutUint64(key[16:], c.addr)
		be.PutUint64(key[24:], c.length)
		target := key[umrKey:]
		be.PutUint32(target, uint32(c.length))
		be.PutUint32(target[4:], c.lkey)
		be.PutUint64(target[8:], c.addr)
	}
	b[0] = flags
	be.PutUint64(b[8:], mask)
}
