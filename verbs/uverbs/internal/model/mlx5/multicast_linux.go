//go:build amd64 || arm64

package mlx5

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// Limits of multicast groups (main.c, mlx5_ib_query_device).
const (
	maxGroups      = 1 << 13
	maxGroupsOfQP  = 128
	multicastQPN   = 0xffffff
	firstMulticast = 0xc000 // LIDs (IB_MULTICAST_LID_BASE), up to the one that is
	permissiveLID  = 0xffff
)

// A multicastGroup is what QPs are members of. There is no subnet manager: each LID leads to those that have it, and on
// Ethernet each address to those whose port would have joined it.
type multicastGroup struct {
	gid [16]byte
	lid uint16 // 0 on Ethernet
}

// multicast says whether a GID is that of a group (include/rdma/ib_addr.h, rdma_is_multicast_addr).
func multicast(gid [16]byte) bool { return netip.AddrFrom16(gid).Unmap().IsMulticast() }

// multicastMAC is the address of a group on Ethernet (core/verbs.c, ib_resolve_eth_dmac).
func multicastMAC(gid [16]byte) [6]byte {
	if a := netip.AddrFrom16(gid); a.Is4In6() {
		return [6]byte{0x01, 0x00, 0x5e, gid[13] & 0x7f, gid[14], gid[15]}
	}
	return [6]byte{0x33, 0x33, gid[12], gid[13], gid[14], gid[15]}
}

// groupOf is the QP and the group of struct ib_uverbs_attach_mcast.
func (c *ucontext) groupOf(r *frame.Request) (*queuePair, multicastGroup, bool) {
	g := multicastGroup{gid: [16]byte(r.Core), lid: le.Uint16(r.Core[20:])}
	if c.device.config.Link == Ethernet {
		g.lid = 0
	}
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[16:]))
	return q, g, ok
}

// attachMulticast is uverbs_cmd.c, ib_uverbs_attach_mcast, with core/verbs.c, ib_attach_mcast.
func (c *ucontext) attachMulticast(r *frame.Request) unix.Errno {
	q, g, ok := c.groupOf(r)
	switch {
	case !ok:
		return unix.EINVAL
	case slices.Contains(q.groups, g):
		return 0
	case !multicast(g.gid) || q.service != serviceUD || !c.device.validGroup(g):
		return unix.EINVAL
	case len(q.groups) >= maxGroupsOfQP:
		return unix.ENOMEM // the firmware: mcg.c, mlx5_cmd_attach_mcg
	}
	q.groups = append(q.groups, g)
	return 0
}

// detachMulticast is uverbs_cmd.c, ib_uverbs_detach_mcast, with core/verbs.c, ib_detach_mcast.
func (c *ucontext) detachMulticast(r *frame.Request) unix.Errno {
	q, g, ok := c.groupOf(r)
	if !ok || !multicast(g.gid) || q.service != serviceUD || !slices.Contains(q.groups, g) {
		return unix.EINVAL
	}
	q.groups = slices.DeleteFunc(q.groups, func(other multicastGroup) bool { return other == g })
	return 0
}

// validGroup is core/verbs.c, is_valid_mcast_lid.
func (d *Device) validGroup(g multicastGroup) bool {
	return d.config.Link == Ethernet || g.lid >= firstMulticast && g.lid != permissiveLID
}

// spread delivers a datagram to the members of its group, but not to the QP that has sent it, which is a guess.
func (q *queuePair) spread(w *workRequest, local []piece) {
	d := q.device()
	g := multicastGroup{gid: w.to.gid, lid: w.to.lid}
	if d.config.Link == Ethernet {
		g.lid = 0
	}
	if d.down || !multicast(g.gid) || d.config.Link == Ethernet && w.to.mac != multicastMAC(g.gid) {
		return
	}
	for _, other := range d.fabric.devices {
		if other.down || other.removed || other.config.Link != d.config.Link {
			continue
		}
		for _, c := range other.contexts {
			for _, p := range c.qps {
				if p != q && slices.Contains(p.groups, g) {
					q.deliver(p, w, local)
				}
			}
		}
	}
}
