package verbs

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func gid(text string) GID { return netip.AddrFrom16(netip.MustParseAddr(text).As16()).As16() }

func TestTheWayBackIsReadFromTheRouteHeader(t *testing.T) {
	ctx := &Context{attr: DeviceAttr{PhysPorts: 1}, drv: twoPorts{gids: []GIDEntry{
		{GID: gid("fe80::1"), Index: 0, Port: 1, Type: GIDTypeRoCEv1},
		{GID: gid("fe80::1"), Index: 1, Port: 1, Type: GIDTypeRoCEv2},
		{GID: gid("::ffff:192.168.0.199"), Index: 2, Port: 1, Type: GIDTypeRoCEv1},
		{GID: gid("::ffff:192.168.0.199"), Index: 3, Port: 1, Type: GIDTypeRoCEv2},
	}}}
	// The IPv4 header is the example of en.wikipedia.org/wiki/Internet_checksum.
	const ip4, waste = "45000073000040004011b861c0a80001c0a800c7", "ffffffffffffffffffffffffffffffffffffffff"
	const ip6 = "62912345" + "00001b40" + "fe800000000000000000000000000002"
	global := WC{Flags: WCGRH}
	for _, c := range []struct {
		name, header string
		wc           WC
		want         AddressVector
		err          string
	}{
		{"InfiniBand without one", "", WC{SLID: 7, SL: 3, PathBits: 1}, AddressVector{DLID: 7, SL: 3, SrcPathBits: 1, Port: 1}, ""},
		{"IPv6", ip6 + "fe800000000000000000000000000001", WC{Flags: WCGRH, SLID: 7},
			AddressVector{DGID: gid("fe80::2"), SGIDIndex: 1, FlowLabel: 0x12345, TrafficClass: 0x29, HopLimit: 255, DLID: 7, IsGlobal: true, Port: 1}, ""},
		{"IPv4", waste + ip4, global, AddressVector{DGID: gid("::ffff:192.168.0.1"), SGIDIndex: 3, HopLimit: 255, IsGlobal: true, Port: 1}, ""},
		{"a group", ip6 + "ff0e0000000000000000000000000077", global,
			AddressVector{DGID: gid("fe80::2"), SGIDIndex: 1, FlowLabel: 0x12345, TrafficClass: 0x29, HopLimit: 255, IsGlobal: true, Port: 1}, ""},
		{"of somebody else", ip6 + "fe800000000000000000000000000003", global, AddressVector{}, "fe80::3"},
		{"IPv4 behind what begins as IPv6", "6" + waste[1:] + ip4, global, AddressVector{DGID: gid("::ffff:192.168.0.1"), SGIDIndex: 3, HopLimit: 255, IsGlobal: true, Port: 1}, ""},
		{"IPv6 that looks as IPv4, but for its sum", "62912345" + "00001b40" + "fe800000000000000000000000000002" + "45000000000000000000000000000001", global, AddressVector{}, "4500::1"},
		{"IPv4 without a sum", waste + ip4[:20] + "0000" + ip4[24:], global, AddressVector{DGID: gid("::ffff:192.168.0.1"), SGIDIndex: 3, HopLimit: 255, IsGlobal: true, Port: 1}, ""},
		{"neither", waste + "46" + ip4[2:], global, AddressVector{}, "no route header"},
		{"too short", ip6, global, AddressVector{}, "24 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			header, err := hex.DecodeString(c.header)
			require.NoError(t, err)
			got, err := ctx.ReplyAddress(&c.wc, header, 1)
			if c.err != "" {
				require.ErrorIs(t, err, ErrInvalid)
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := ctx.ReplyAddress(&global, nil, 2)
	require.ErrorIs(t, err, ErrInvalid)
}

// The software HCA's GIDs are no addresses of IP, and its groups may be of either version.
func TestTheWayBackFromAGroupOfTheSoftwareHCAIsFound(t *testing.T) {
	ctx := &Context{attr: DeviceAttr{PhysPorts: 1}, drv: twoPorts{gids: []GIDEntry{{GID: gid("fd12::1"), Index: 0, Port: 1, Type: GIDTypeSoft}}}}
	for _, group := range []string{"::ffff:239.1.2.3", "ff0e::1"} {
		header := make([]byte, GRHSize)
		header[0] = 6 << 4
		from, to := gid("fd12::2"), gid(group)
		copy(header[8:], from[:])
		copy(header[24:], to[:])
		av, err := ctx.ReplyAddress(&WC{Flags: WCGRH}, header, 1)
		require.NoError(t, err)
		require.Equal(t, from, av.DGID)
		require.Zero(t, av.SGIDIndex)
	}
}
