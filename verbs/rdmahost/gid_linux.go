package rdmahost

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// maxGIDTable bounds the rows that are read of one table; GID indexes have 16
// bits in the verbs and 8 in path records.
const maxGIDTable = 1 << 16

// GIDs reads the GID table of a port without its empty rows. It is for
// kernels before 5.10, whose uverbs cannot give the table in one command.
func GIDs(name string, port uint8) ([]verbs.GIDEntry, error) {
	list, err := thisHost.gids(name, port)
	if err != nil {
		return nil, fmt.Errorf("read GID table of %s port %d: %w", name, port, err)
	}
	for i := range list {
		// An interface of another network namespace keeps index 0.
		if ifi, err := net.InterfaceByName(list[i].Netdev); err == nil {
			list[i].Ifindex = ifi.Index
		}
	}
	return list, nil
}

// gids reads ports/P/gids/I and, for the type and the network interface of a
// row, ports/P/gid_attrs.
func (h host) gids(name string, port uint8) ([]verbs.GIDEntry, error) {
	dir := h.portDir(name, port)
	rows, err := h.names(dir, "gids")
	if err != nil {
		return nil, err
	}
	linkLayer := h.textOr("", dir, "link_layer")
	iwarp := h.textOr("", classInfiniband, name, "node_type") == "4: RNIC"
	var list []verbs.GIDEntry
	for _, row := range rows {
		index, err := strconv.ParseUint(row, 10, 32)
		if err != nil || index >= maxGIDTable {
			continue
		}
		// A row that is empty reads as zeros, or not at all.
		gid, err := parseGID128(h.textOr("", dir, "gids", row))
		if err != nil || gid == (verbs.GID{}) {
			continue
		}
		list = append(list, verbs.GIDEntry{
			GID: gid, Index: int(index), Port: port,
			Type:   gidType(h.textOr("", dir, "gid_attrs/types", row), linkLayer == "Ethernet" && !iwarp),
			Netdev: h.textOr("", dir, "gid_attrs/ndevs", row),
		})
	}
	slices.SortFunc(list, func(a, b verbs.GIDEntry) int { return a.Index - b.Index })
	return list, nil
}

// PKey reads a row of the P_Key table of a port.
func PKey(name string, port uint8, index uint16) (uint16, error) {
	return thisHost.pkey(name, port, index)
}

func (h host) pkey(name string, port uint8, index uint16) (uint16, error) {
	text, err := h.text(h.portDir(name, port), "pkeys", strconv.Itoa(int(index)))
	if err != nil {
		return 0, fmt.Errorf("read P_Key %d of %s port %d: %w", index, name, port, err)
	}
	key, err := strconv.ParseUint(text, 0, 16)
	if err != nil {
		return 0, fmt.Errorf("read P_Key %d of %s port %d: %w", index, name, port, err)
	}
	return uint16(key), nil
}

func (h host) portDir(name string, port uint8) string {
	return path.Join(classInfiniband, name, "ports", strconv.Itoa(int(port)))
}

// gidType translates the text of gid_attrs/types (drivers/infiniband/core/
// cache.c, gid_type_str), which has one word for InfiniBand and RoCE v1.
func gidType(text string, roce bool) verbs.GIDType {
	switch {
	case text == "RoCE v2":
		return verbs.GIDTypeRoCEv2
	case roce:
		return verbs.GIDTypeRoCEv1
	}
	return verbs.GIDTypeIB
}

// parseGID128 reads a GID as the kernel prints it, eight groups of four
// hexadecimal digits ("%pI6"), which is an IPv6 address written out.
func parseGID128(text string) (verbs.GID, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil || !ip.Is6() || ip.Zone() != "" {
		return verbs.GID{}, fmt.Errorf("%q is not a GID", text)
	}
	return ip.As16(), nil
}
