//go:build amd64 || arm64

package fabric

import (
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Limits of multicast groups.
const (
	MaxGroups      = 1 << 13
	MaxGroupsOfQP  = 128
	multicastQPN   = 0xffffff
	firstMulticast = 0xc000 // LIDs (IB_MULTICAST_LID_BASE), up to the one that is
	permissiveLID  = 0xffff
)

// A multicastGroup is what QPs are members of. There is no subnet manager: each LID leads to those
// that have it, and on Ethernet each address to those whose port would have joined it.
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

// Attach is uverbs_cmd.c, ib_uverbs_attach_mcast, with core/verbs.c, ib_attach_mcast. The request
// is struct ib_uverbs_attach_mcast.
func (q *QP) Attach(r []byte) unix.Errno {
	g := q.Port.group([16]byte(r), le.Uint16(r[20:]))
	switch {
	case slices.Contains(q.groups, g):
		return 0
	case !multicast(g.gid) || q.Service != UD || !q.Port.validGroup(g):
		return unix.EINVAL // core/verbs.c, ib_attach_mcast
	case len(q.groups) >= MaxGroupsOfQP:
		return unix.ENOMEM // the firmware: of mlx5 mcg.c, mlx5_cmd_attach_mcg
	}
	q.groups = append(q.groups, g)
	return 0
}

// Detach is uverbs_cmd.c, ib_uverbs_detach_mcast, with core/verbs.c, ib_detach_mcast.
func (q *QP) Detach(r []byte) unix.Errno {
	g := q.Port.group([16]byte(r), le.Uint16(r[20:]))
	if !multicast(g.gid) || q.Service != UD || !slices.Contains(q.groups, g) {
		return unix.EINVAL // core/uverbs_cmd.c, ib_uverbs_detach_mcast; core/verbs.c, ib_detach_mcast
	}
	q.groups = slices.DeleteFunc(q.groups, func(other multicastGroup) bool { return other == g })
	return 0
}

// Member says whether the QP is in a group.
func (q *QP) Member() bool { return len(q.groups) > 0 }

func (p *Port) group(gid [16]byte, lid uint16) multicastGroup {
	if p.Link == Ethernet {
		lid = 0
	}
	return multicastGroup{gid, lid}
}

// validGroup is core/verbs.c, is_valid_mcast_lid.
func (p *Port) validGroup(g multicastGroup) bool {
	return p.Link == Ethernet || g.lid >= firstMulticast && g.lid != permissiveLID
}

// spread delivers a datagram to the members of its group, but not to the QP that has sent
// it, which is a guess.
func (q *QP) spread(w *Request, local []piece) {
	from := q.Port
	g := from.group(w.To.GID, w.To.LID)
	if from.down || !multicast(g.gid) || from.Link == Ethernet && w.To.MAC != multicastMAC(g.gid) {
		return
	}
	for _, p := range from.fabric.ports {
		if p.down || p.Removed || p.Link != from.Link {
			continue
		}
		for _, number := range slices.Sorted(maps.Keys(p.QPs)) {
			if to := p.QPs[number]; to != q && slices.Contains(to.groups, g) {
				q.deliver(to, w, local)
			}
		}
	}
}
