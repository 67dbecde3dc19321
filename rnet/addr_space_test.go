package rnet

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClientsOfOtherHostsShareTheirPorts(t *testing.T) {
	var space addrSpace
	here, there := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")
	most := newPortSet().most
	used := make(map[netip.AddrPort]bool)
	var ranges []slotAddrs
	slots := uint32(0)
	for {
		addr, got := space.take(here, false, 100, laterShare)
		if got == 0 {
			break
		}
		require.LessOrEqual(t, got, 100)
		for i := range got {
			one := netip.AddrPortFrom(addr.Addr(), addr.Port()+uint16(i))
			require.GreaterOrEqual(t, one.Port(), uint16(firstPort))
			require.False(t, used[one], one)
			used[one] = true
		}
		ranges = append(ranges, slotAddrs{slot: slots, count: uint32(got), addr: addr})
		slots += uint32(got)
	}
	require.Len(t, used, most)

	_, got := space.take(there, false, 100, laterShare)
	require.Equal(t, 100, got, "another client has ports of its own")

	last := ranges[len(ranges)-1]
	space.give(here, ranges[:1])
	space.give(here, ranges[len(ranges)-1:])
	addr, got := space.take(here, false, 1, 1)
	require.Equal(t, 1, got)
	require.Contains(t, []netip.AddrPort{ranges[0].addr, last.addr}, addr)
	space.give(here, ranges[1:len(ranges)-1])
	space.give(here, []slotAddrs{{count: 1, addr: addr}})
	require.NotContains(t, space.hosts, here, "a client that has gone costs nothing")
}

func TestSpareAddressesAreOneSessionsEach(t *testing.T) {
	var space addrSpace
	ip := netip.MustParseAddr("::1")
	var all []slotAddrs
	seen := make(map[netip.Addr]bool)
	for len(seen) < 100 {
		addr, got := space.take(ip, true, sparePorts, 1)
		require.NotZero(t, got)
		all = append(all, slotAddrs{count: uint32(got), addr: addr})
		if addr.Addr() != ip {
			require.False(t, seen[addr.Addr()])
			require.True(t, addr.Addr().IsLoopback())
			seen[addr.Addr()] = true
		}
	}
	space.give(ip, all)
	require.Empty(t, space.spare)
	require.Empty(t, space.hosts)
}

func TestAddressesSurviveTheWire(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:1024", "[::1]:65000", "10.1.2.3:65535"} {
		r := slotAddrs{slot: 7, count: 1, addr: netip.MustParseAddrPort(addr)}
		var b [addrsLen]byte
		r.put(&b)
		got, err := parseAddrs(b[:], 7, 8)
		require.NoError(t, err)
		require.Equal(t, r, got)
		for _, next := range []uint32{6, 8} {
			_, err = parseAddrs(b[:], next, 100)
			require.ErrorIs(t, err, errProtocol, "a gap or an overlap")
		}
		_, err = parseAddrs(b[:addrsLen-1], 7, 8)
		require.ErrorIs(t, err, errProtocol)
		_, err = parseAddrs(b[:], 7, 7)
		require.ErrorIs(t, err, errProtocol, "beyond the limit")
		r.count = 1<<16 - uint32(r.addr.Port()) + 1
		r.put(&b)
		_, err = parseAddrs(b[:], 7, 1<<20)
		require.ErrorIs(t, err, errProtocol, "beyond the last port")
	}
}
