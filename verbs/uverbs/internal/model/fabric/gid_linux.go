//go:build amd64 || arm64

package fabric

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/cm"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// The network interface of Ethernet ports is the loopback one of the machine on which
// the model runs: what a program wants to know of it is there, and TCP between two hosts of
// a fabric works at the addresses that their GIDs are made of.
const (
	netdev  = "lo"
	ifindex = 1
)

const gidTableRoCE = 16

// makeGIDs fills the table: of Ethernet the link-local address of the MAC and the n-th
// host's addresses, each for both versions of RoCE in the kernel's order. It returns what the
// connection manager is to use.
func (p *Port) makeGIDs(n int) (list []cm.Address) {
	var local [16]byte
	be.PutUint64(local[:], 0xfe80<<48)
	be.PutUint64(local[8:], p.GUID)
	if p.Link == InfiniBand {
		p.GIDs = []GID{{local, KindIB}}
		for _, a := range p.fabric.addresses(n) {
			list = append(list, cm.Address{IP: a, GID: local})
		}
		return list
	}
	p.GIDs = []GID{{local, KindRoCE1}, {local, KindRoCE2}}
	for _, a := range p.fabric.addresses(n) {
		gid := a.As16()
		p.GIDs = append(p.GIDs, GID{gid, KindRoCE1}, GID{gid, KindRoCE2})
		list = append(list, cm.Address{IP: a, GID: gid, Index: byte(len(p.GIDs) - 1)})
	}
	return list
}

// gidTable is the length of the table.
func (p *Port) gidTable() int {
	if p.Link == InfiniBand {
		return len(p.GIDs)
	}
	return gidTableRoCE
}

// CheckPath checks an address vector of a port (core/verbs.c, rdma_check_ah_attr and
// rdma_fill_sgid_attr).
func (p *Port) CheckPath(global bool, source byte) unix.Errno {
	switch {
	case p.Link == Ethernet && !global:
		return unix.EINVAL // core/verbs.c, rdma_check_ah_attr
	case global && int(source) >= p.gidTable():
		return unix.EINVAL // core/cache.c, rdma_get_gid_attr
	case global && int(source) >= len(p.GIDs):
		return unix.ENODATA // core/cache.c, rdma_get_gid_attr
	}
	return 0
}

// find returns the port to which packets go, or nil. RoCE has two kinds of
// packets, and a port takes those for which it has a GID.
func (p *Port) find(to Address) *Port {
	if p.Link == Ethernet {
		if int(to.Source) >= len(p.GIDs) {
			return nil
		}
		return p.fabric.findGID(to.GID, p.GIDs[to.Source].Kind)
	}
	for _, other := range p.fabric.ports {
		if other.Link != InfiniBand {
			continue
		}
		if other.LID == to.LID || to.Global && to.LID == 0 && other.GIDs[0].Bytes == to.GID {
			return other
		}
	}
	return nil
}

func (f *Fabric) findGID(gid [16]byte, kind GIDKind) *Port {
	for _, p := range f.ports {
		for _, g := range p.GIDs {
			if g.Bytes == gid && g.Kind == kind {
				return p
			}
		}
	}
	return nil
}

// ResolveMAC returns the address on Ethernet of a GID, or of a group, and false if nobody has it.
func (p *Port) ResolveMAC(gid [16]byte, source byte) (mac [6]byte, ok bool) {
	if multicast(gid) {
		return multicastMAC(gid), true
	}
	to := p.fabric.findGID(gid, p.GIDs[source].Kind)
	if to == nil {
		return mac, false
	}
	return to.MAC, true
}

// row is struct ib_uverbs_gid_entry.
func (p *Port) row(index int) (b []byte) {
	g := p.GIDs[index]
	interfaceIndex := uint32(0)
	if p.Link == Ethernet {
		interfaceIndex = ifindex
	}
	b = append(b, g.Bytes[:]...)
	for _, v := range []uint32{uint32(index), 1, uint32(g.Kind), interfaceIndex} {
		b = le.AppendUint32(b, v)
	}
	return b
}

// QueryGIDTable is core/uverbs_std_types_device.c, UVERBS_HANDLER(UVERBS_METHOD_QUERY_GID_TABLE).
func (p *Port) QueryGIDTable(r *frame.Call) unix.Errno {
	size := int(min(r.Uint64(0), 1<<16))
	if size == 0 || r.Uint64(1) != 0 {
		return unix.EINVAL // core/uverbs_std_types_device.c, UVERBS_METHOD_QUERY_GID_TABLE
	}
	var rows []byte
	n := 0
	for ; n < min(len(p.GIDs), r.Room(2)/size); n++ {
		row := make([]byte, size)
		copy(row, p.row(n))
		rows = append(rows, row...)
	}
	if errno := r.Answer(2, rows); errno != 0 {
		return errno
	}
	return r.Answer(3, le.AppendUint64(nil, uint64(n)))
}

// QueryGIDEntry is UVERBS_HANDLER(UVERBS_METHOD_QUERY_GID_ENTRY).
func (p *Port) QueryGIDEntry(r *frame.Call) unix.Errno {
	port, index := r.Uint64(0), r.Uint64(1)
	switch {
	case r.Uint64(2) != 0 || port != 1 || index >= uint64(p.gidTable()):
		return unix.EINVAL // core/uverbs_std_types_device.c, UVERBS_METHOD_QUERY_GID_ENTRY; core/cache.c, rdma_get_gid_attr
	case index >= uint64(len(p.GIDs)):
		return unix.ENODATA // core/cache.c, rdma_get_gid_attr
	}
	return r.Answer(3, p.row(int(index)))
}
