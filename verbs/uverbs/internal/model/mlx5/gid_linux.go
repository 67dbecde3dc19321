//go:build amd64 || arm64

package mlx5

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/cm"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A gidKind is the type of a GID (enum ib_uverbs_gid_type).
type gidKind uint32

const (
	gidIB    gidKind = 0
	gidRoCE1 gidKind = 1
	gidRoCE2 gidKind = 2
)

// String is the kind as sysfs has it (core/cache.c, gid_type_str).
func (k gidKind) String() string {
	if k == gidRoCE2 {
		return "RoCE v2"
	}
	return "IB/RoCE v1"
}

// The network interface of Ethernet ports is the loopback one of the machine on which
// the model runs: what a program wants to know of it is there, and TCP between two hosts of
// a fabric works at the addresses that their GIDs are made of.
const (
	netdev  = "lo"
	ifindex = 1
)

const (
	gidTableRoCE = 16
	gidEntrySize = 32
)

// A gidEntry is a row of the GID table.
type gidEntry struct {
	gid  [16]byte
	kind gidKind
}

func (g gidEntry) String() string {
	text := ""
	for i := 0; i < 16; i += 2 {
		text += fmt.Sprintf(":%04x", be.Uint16(g.gid[i:]))
	}
	return text[1:]
}

func (g gidEntry) ipv4() bool {
	return be.Uint64(g.gid[:]) == 0 && be.Uint32(g.gid[8:]) == 0xffff
}

// makeGIDs fills the table: of Ethernet the link-local address of the MAC and the n-th
// host's addresses, each for both versions of RoCE in the kernel's order. It returns what the connection
// manager is to use.
func (d *Device) makeGIDs(n int) (list []cm.Address) {
	var local [16]byte
	be.PutUint64(local[:], 0xfe80<<48)
	be.PutUint64(local[8:], d.guid)
	if d.config.Link == InfiniBand {
		d.gids = []gidEntry{{local, gidIB}}
		for _, a := range d.fabric.addresses(n) {
			list = append(list, cm.Address{IP: a, GID: local})
		}
		return list
	}
	d.gids = []gidEntry{{local, gidRoCE1}, {local, gidRoCE2}}
	for _, a := range d.fabric.addresses(n) {
		gid := a.As16()
		d.gids = append(d.gids, gidEntry{gid, gidRoCE1}, gidEntry{gid, gidRoCE2})
		list = append(list, cm.Address{IP: a, GID: gid, Index: byte(len(d.gids) - 1)})
	}
	return list
}

// gidTable is the length of the table.
func (d *Device) gidTable() int {
	if d.config.Link == InfiniBand {
		return len(d.gids)
	}
	return gidTableRoCE
}

// checkPath checks an address vector of a port (core/verbs.c, rdma_check_ah_attr and
// rdma_fill_sgid_attr).
func (d *Device) checkPath(global bool, source byte) unix.Errno {
	switch {
	case d.config.Link == Ethernet && !global:
		return unix.EINVAL
	case global && int(source) >= d.gidTable():
		return unix.EINVAL
	case global && int(source) >= len(d.gids):
		return unix.ENODATA // core/cache.c, rdma_get_gid_attr
	}
	return 0
}

// find returns the device to which packets go, or nil. RoCE has two kinds of
// packets, and a device takes those for which it has a GID.
func (d *Device) find(to address) *Device {
	if d.config.Link == Ethernet {
		if int(to.source) >= len(d.gids) {
			return nil
		}
		return d.fabric.findGID(to.gid, d.gids[to.source].kind)
	}
	for _, other := range d.fabric.devices {
		if other.config.Link != InfiniBand {
			continue
		}
		if other.lid == to.lid || to.global && to.lid == 0 && other.gids[0].gid == to.gid {
			return other
		}
	}
	return nil
}

func (f *Fabric) findGID(gid [16]byte, kind gidKind) *Device {
	for _, d := range f.devices {
		for _, g := range d.gids {
			if g.gid == gid && g.kind == kind {
				return d
			}
		}
	}
	return nil
}

// row is struct ib_uverbs_gid_entry.
func (d *Device) row(index int) []byte {
	g := d.gids[index]
	interfaceIndex := uint32(0)
	if d.config.Link == Ethernet {
		interfaceIndex = ifindex
	}
	return append(g.gid[:], words(uint32(index), 1, uint32(g.kind), interfaceIndex)...)
}

// queryGIDTable is core/uverbs_std_types_device.c, UVERBS_HANDLER(UVERBS_METHOD_QUERY_GID_TABLE).
func (c *ucontext) queryGIDTable(r *frame.Call) unix.Errno {
	size := int(min(r.Uint64(0), 1<<16))
	if size == 0 || r.Uint64(1) != 0 {
		return unix.EINVAL
	}
	var rows []byte
	n := 0
	for ; n < min(len(c.device.gids), r.Room(2)/size); n++ {
		row := make([]byte, size)
		copy(row, c.device.row(n))
		rows = append(rows, row...)
	}
	if errno := r.Answer(2, rows); errno != 0 {
		return errno
	}
	return r.Answer(3, quads(uint64(n)))
}

// queryGIDEntry is UVERBS_HANDLER(UVERBS_METHOD_QUERY_GID_ENTRY).
func (c *ucontext) queryGIDEntry(r *frame.Call) unix.Errno {
	port, index := r.Uint64(0), r.Uint64(1)
	switch {
	case r.Uint64(2) != 0 || port != 1 || index >= uint64(c.device.gidTable()):
		return unix.EINVAL
	case index >= uint64(len(c.device.gids)):
		return unix.ENODATA
	}
	return r.Answer(3, c.device.row(int(index)))
}
