package peeraddr

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

func TestClientsOfOtherHostsShareTheirPorts(t *testing.T) {
	var space Space
	here, there := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")
	most := newPortSet().most
	used := make(map[netip.AddrPort]bool)
	var ranges []mux.SlotAddrs
	slots := uint32(0)
	for {
		addr, got := space.Take(here, false, 100, 4)
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
		ranges = append(ranges, mux.SlotAddrs{Slot: slots, Count: uint32(got), Addr: addr})
		slots += uint32(got)
	}
	require.Len(t, used, most)

	_, got := space.Take(there, false, 100, 4)
	require.GreaterOrEqual(t, got, 50, "another client has ports of its own")

	last := ranges[len(ranges)-1]
	space.Give(here, ranges[:1])
	space.Give(here, ranges[len(ranges)-1:])
	addr, got := space.Take(here, false, 1, 1)
	require.Equal(t, 1, got)
	given := func(r mux.SlotAddrs) bool { // perhaps from its middle on: the port to begin with is random
		return addr.Addr() == r.Addr.Addr() && addr.Port() >= r.Addr.Port() && uint32(addr.Port()-r.Addr.Port()) < r.Count
	}
	require.True(t, given(ranges[0]) || given(last), addr)
	space.Give(here, ranges[1:len(ranges)-1])
	space.Give(here, []mux.SlotAddrs{{Count: 1, Addr: addr}})
	require.NotContains(t, space.hosts, here, "a client that has gone costs nothing")
}

// A session with few addresses would use each again at once.
func TestNoSessionGetsTheRestOfARange(t *testing.T) {
	ip := netip.MustParseAddr("127.0.0.1")
	low, high := tcpPorts()
	for _, next := range []int{0, firstPort - 1, low - 1, low, high, high + 1, 1<<16 - 100, 1<<16 - 1} {
		space := Space{hosts: make(map[netip.Addr]*portSet), spare: make(map[uint32]struct{}), next: uint32(next)}
		for range 4 {
			addr, got := space.Take(ip, true, 256, 64)
			require.Equal(t, 256, got, "%v, from %d on", addr, next)
		}
	}
}

// Connections with a session of their own hold one address each, between which no run is left that
// is as long as a session wants. The longest of them is no better than the others.
func TestShortRunsAreGivenOutInTurn(t *testing.T) {
	var space Space
	ip := netip.MustParseAddr("10.0.0.7")
	var gaps []mux.SlotAddrs
	for {
		want := 40
		if len(gaps) == 50 {
			want = 44
		}
		space.Take(ip, false, 1, 1)
		addr, got := space.Take(ip, false, want, 1)
		if got == 0 {
			break // all are taken
		}
		gaps = append(gaps, mux.SlotAddrs{Count: uint32(got), Addr: addr})
	}
	space.Give(ip, gaps)
	seen := make(map[netip.AddrPort]bool)
	for range 200 {
		addr, got := space.Take(ip, false, 512, 64)
		require.GreaterOrEqual(t, got, 22)
		require.False(t, seen[addr], "%v after %d others", addr, len(seen))
		seen[addr] = true
		space.Give(ip, []mux.SlotAddrs{{Count: uint32(got), Addr: addr}})
	}
}

func TestSpareAddressesAreOneSessionsEach(t *testing.T) {
	var space Space
	ip := netip.MustParseAddr("::1")
	var all []mux.SlotAddrs
	seen := make(map[netip.Addr]bool)
	for len(seen) < 100 {
		addr, got := space.Take(ip, true, sparePorts, 1)
		require.NotZero(t, got)
		all = append(all, mux.SlotAddrs{Count: uint32(got), Addr: addr})
		if addr.Addr() != ip {
			require.False(t, seen[addr.Addr()])
			require.True(t, addr.Addr().IsLoopback())
			seen[addr.Addr()] = true
		}
	}
	space.Give(ip, all)
	require.Empty(t, space.spare)
	require.Empty(t, space.hosts)
}

// Where TCP takes nearly all ports, no stream of this host shows one that a TCP peer of the
// same listener may have.
func TestStreamsOfThisHostShareNoPortWithTCP(t *testing.T) {
	usual := tcpPorts
	tcpPorts = func() (low, high int) { return firstPort, 1<<16 - 1 }
	t.Cleanup(func() { tcpPorts = usual })
	var space Space
	ip := netip.MustParseAddr("127.0.0.1")
	var all []mux.SlotAddrs
	for range 100 {
		addr, got := space.Take(ip, true, 8, 4)
		require.Equal(t, 8, got)
		require.NotEqual(t, ip, addr.Addr())
		all = append(all, mux.SlotAddrs{Count: uint32(got), Addr: addr})
	}
	space.Give(ip, all)
	require.Empty(t, space.hosts)

	addr, got := space.Take(netip.MustParseAddr("10.0.0.7"), false, 8, 4)
	require.GreaterOrEqual(t, got, 4, "half of what is wanted may be left before the last port")
	require.Equal(t, "10.0.0.7", addr.Addr().String())
}
