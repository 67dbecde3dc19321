package rdmahost

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func gidOf(addr string) verbs.GID { return netip.MustParseAddr(addr).As16() }

func TestSysfsListsFilledRowsInOrder(t *testing.T) {
	list, err := rxeHost().host().gids("rxe0", 1)
	require.NoError(t, err)
	require.Equal(t, []verbs.GIDEntry{
		{GID: gidOf("fe80::5054:ff:fe12:3456"), Index: 0, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "dummy0"},
		{GID: gidOf("::ffff:10.0.0.1"), Index: 1, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "dummy0"},
		{GID: gidOf("fd00::1"), Index: 10, Port: 1, Type: verbs.GIDTypeRoCEv1},
	}, list)
}

func TestIWARPRowHasNoRoCEType(t *testing.T) {
	list, err := siwHost().host().gids("iwarp_lo", 1)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, verbs.GIDTypeIB, list[0].Type)
	_, ok := PreferredGID(list, netip.MustParseAddr("127.0.0.1"))
	require.False(t, ok)
}

func TestPortWithoutATableHasNoRows(t *testing.T) {
	list, err := rxeHost().host().gids("rxe0", 2)
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestPreferredGIDFitsTheAddress(t *testing.T) {
	row := func(typ verbs.GIDType, addr string) verbs.GIDEntry {
		return verbs.GIDEntry{GID: gidOf(addr), Type: typ}
	}
	const v1, v2 = verbs.GIDTypeRoCEv1, verbs.GIDTypeRoCEv2
	table := []verbs.GIDEntry{
		row(v1, "fe80::1"), row(v2, "fe80::1"),
		row(v1, "::ffff:10.0.0.1"), row(v2, "::ffff:10.0.0.1"),
		row(v2, "::ffff:10.0.0.2"),
		row(v1, "fd00::1"), row(v2, "fd00::1"),
	}
	for _, c := range []struct {
		name  string
		table []verbs.GIDEntry
		addr  string
		want  int // -1: none
	}{
		{"the address itself, RoCE v2", table, "10.0.0.2", 4},
		{"a mapped address is the same", table, "::ffff:10.0.0.2", 4},
		{"the IPv6 address itself", table, "fd00::1", 6},
		{"another address of the family", table, "10.9.9.9", 3},
		{"another IPv6 address", table, "fd00::9", 6},
		{"link-local with a zone", table, "fe80::1%eth0", 1},
		{"another link-local", table, "fe80::9", 1},
		{"any, IPv4 first", table, "", 3},
		{"the other family rather than link-local", []verbs.GIDEntry{row(v2, "fe80::1"), row(v2, "::ffff:10.0.0.1")}, "fd00::1", 1},
		{"link-local if nothing else", []verbs.GIDEntry{row(v1, "::ffff:10.0.0.1"), row(v2, "fe80::1")}, "10.0.0.1", 1},
		{"RoCE v1 if nothing else", []verbs.GIDEntry{row(v1, "fe80::1"), row(v1, "::ffff:10.0.0.1")}, "10.0.0.1", 1},
		{"InfiniBand", []verbs.GIDEntry{row(verbs.GIDTypeIB, "fe80::1")}, "10.0.0.1", -1},
		{"an empty row", []verbs.GIDEntry{row(v2, "::")}, "10.0.0.1", -1},
		{"an empty table", nil, "10.0.0.1", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var addr netip.Addr
			if c.addr != "" {
				addr = netip.MustParseAddr(c.addr)
			}
			got, ok := PreferredGID(c.table, addr)
			require.Equal(t, c.want >= 0, ok)
			if ok {
				require.Equal(t, c.table[c.want], got)
			}
		})
	}
}

// FuzzSysfsGID reads arbitrary text as a GUID, a GID and a device number. What
// is accepted must read the same when it is written out.
func FuzzSysfsGID(f *testing.F) {
	f.Add("fe80:0000:0000:0000:5054:00ff:fe12:3456", "5054:00ff:fe12:3456", "231:192", "RoCE v2")
	f.Add("0000:0000:0000:0000:0000:ffff:0a00:0001", "1:2:3", "1", "IB/RoCE v1")
	f.Add("fe80::1%eth0", "", ":", "")
	f.Fuzz(func(t *testing.T, gidText, guidText, dev, typ string) {
		if gid, err := parseGID128(gidText); err == nil {
			again, err := parseGID128(netip.AddrFrom16(gid).StringExpanded())
			require.NoError(t, err)
			require.Equal(t, gid, again)
		}
		_, _ = parseGUID(guidText)
		_, _, _ = parseDevNumber(dev)
		h := rxeHost().with(classInfiniband+"/rxe0", machine{
			"ports/1/gids/0": gidText, "node_guid": guidText, "ports/1/gid_attrs/types/0": typ,
		}).with(classVerbs, machine{"uverbs0/dev": dev}).host()
		list, err := h.gids("rxe0", 1)
		require.NoError(t, err)
		for _, e := range list {
			require.NotEqual(t, verbs.GID{}, e.GID)
			require.Less(t, e.Index, maxGIDTable)
		}
		PreferredGID(list, netip.Addr{})
		d := Device{Name: "rxe0", Index: -1}
		h.complete(&d)
	})
}
