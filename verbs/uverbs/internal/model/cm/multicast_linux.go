//go:build amd64 || arm64

package cm

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// Multicast groups. The subnet administrator of InfiniBand is part of the model: a group has a LID
// as soon as somebody joins it, and keeps it.

// errnoUnsupported is ENOTSUPP of the kernel.
const errnoUnsupported = unix.Errno(524)

const (
	groupQPN      = 0xffffff
	firstGroupLID = 0xc000
	groupHops     = 64 // IPV6_DEFAULT_HOPLIMIT
)

// A membership is struct ucma_multicast.
type membership struct {
	number   uint32
	uid      uint64
	reported uint32
}

// join is ucma_join_multicast, with ucma_process_join.
func (f *file) join(m *frame.Message, b []byte, out int) unix.Errno {
	const all, sendOnly = 0, 1 // RDMA_MC_JOIN_FLAG_*
	if out < 4 {
		return unix.ENOSPC // ucma.c, ucma_process_join
	}
	group, errno := parseAddress(b[24:], le.Uint16(b[20:]))
	if flags := le.Uint16(b[22:]); errno != 0 || flags != all && flags != sendOnly {
		return unix.EINVAL // the same
	}
	i, errno := f.get(le.Uint32(b[16:]))
	switch {
	case errno != 0:
		return errno
	case !i.onDevice || i.state != bound && i.state != resolved:
		return unix.EINVAL // cma.c, rdma_join_multicast
	case !group.IsValid() || group.Addr().IsUnspecified():
		return unix.EINVAL // cma.c, cma_iboe_join_multicast: the model has no addresses of InfiniBand
	case f.host.port.Ethernet && !group.Addr().Is4():
		return errnoUnsupported // cma_iboe_join_multicast
	}
	made := &membership{number: f.host.network.next(), uid: le.Uint64(b[8:])}
	i.memberships = append(i.memberships, made)
	i.report(event{kind: eventMulticastJoin, member: made, ud: i.groupParam(group.Addr())})
	return write(m, le.Uint64(b), words(made.number))
}

// groupParam is the struct rdma_ucm_ud_param of a group (cma_make_mc_event, core/verbs.c,
// ib_init_ah_from_mcmember).
func (i *identifier) groupParam(group netip.Addr) []byte {
	b := make([]byte, 304)
	le.PutUint32(b, groupQPN)
	le.PutUint32(b[4:], defaultQKey)
	own, _ := i.file.host.port.address(i.local.Addr())
	ah := b[8:]
	ah[20], ah[29], ah[30] = own.Index, 1, 1
	if i.file.host.port.Ethernet {
		gid := group.As16() // cma_iboe_set_mgid of RoCE v2
		copy(ah, gid[:])
		ah[21] = groupHops
		return b
	}
	gid := groupGID(group)
	copy(ah, gid[:])
	le.PutUint16(ah[24:], i.file.host.network.groupLID(gid))
	return b
}

// groupGID is cma_set_mgid of port space UDP, with ip_ib_mc_map and ipv6_ib_mc_map.
func groupGID(group netip.Addr) (gid [16]byte) {
	copy(gid[:], []byte{0xff, 0x12, 0x40, 0x01, 0xff, 0xff}) // of the link, and of P_Key 0xffff
	if group.Is4() {
		a := group.As4()
		copy(gid[12:], a[:])
		gid[12] &= 0xf
		return gid
	}
	gid[2] = 0x60
	a := group.As16()
	copy(gid[6:], a[6:])
	return gid
}

// groupLID is what the subnet administrator says.
func (n *Network) groupLID(gid [16]byte) uint16 {
	at := slices.Index(n.groups, gid)
	if at < 0 {
		at = len(n.groups)
		n.groups = append(n.groups, gid)
	}
	return uint16(firstGroupLID + at)
}

// leaveGroup is ucma_leave_multicast.
func (f *file) leaveGroup(m *frame.Message, b []byte, out int) unix.Errno {
	if out < 4 {
		return unix.ENOSPC // ucma.c, ucma_leave_multicast
	}
	number := le.Uint32(b[8:])
	for _, i := range f.identifiers {
		for at, member := range i.memberships {
			if member.number == number {
				i.memberships = slices.Delete(i.memberships, at, at+1)
				f.drop(func(e *event) bool { return e.member == member })
				return write(m, le.Uint64(b), words(member.reported))
			}
		}
	}
	for _, other := range f.host.files {
		for _, i := range other.identifiers {
			if slices.ContainsFunc(i.memberships, func(m *membership) bool { return m.number == number }) {
				return unix.EINVAL // ucma.c, ucma_leave_multicast: of another file
			}
		}
	}
	return unix.ENOENT // the same
}

// drop forgets events that nobody has read (ucma_cleanup_mc_events).
func (f *file) drop(of func(*event) bool) {
	kept := f.events[:0]
	for _, e := range f.events {
		if of(&e) {
			f.count.Take()
		} else {
			kept = append(kept, e)
		}
	}
	f.events = kept
}
