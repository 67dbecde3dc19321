package rnet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/peeraddr"
)

func TestAddressesAreTCPAddresses(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		c, s := k.connect(t, ln)
		listening := ln.Addr().(*net.TCPAddr)
		require.NotZero(t, listening.Port)
		require.Equal(t, listening.String(), c.RemoteAddr().(*net.TCPAddr).String())
		require.Equal(t, listening.String(), s.LocalAddr().(*net.TCPAddr).String())
		require.Equal(t, c.LocalAddr().(*net.TCPAddr).String(), s.RemoteAddr().(*net.TCPAddr).String(), "both ends tell the same")
		require.Equal(t, listening.IP.String(), c.LocalAddr().(*net.TCPAddr).IP.String())
		require.NotZero(t, c.LocalAddr().(*net.TCPAddr).Port)
		require.Equal(t, "tcp", c.LocalAddr().Network())
	})
}

// What a server sees of a peer does not depend on the transport, down to netip.Addr.Is4In6.
func TestAddressesHaveTheLengthOfPackageNets(t *testing.T) {
	for _, at := range []struct{ network, host, dial string }{
		{"tcp", "", "127.0.0.1"}, {"tcp", "", "[::1]"}, {"tcp4", "", "127.0.0.1"}, {"tcp", "127.0.0.1", "127.0.0.1"}, {"tcp", "[::1]", "[::1]"},
	} {
		ln, err := Listen(at.network, at.host+":0")
		require.NoError(t, err)
		defer ln.Close()
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		ends := func(transport Transport) (ips []net.IP) {
			c, err := (&Dialer{Transport: transport}).Dial("tcp", at.dial+":"+port)
			require.NoError(t, err)
			defer c.Close()
			s, err := ln.Accept()
			require.NoError(t, err)
			defer s.Close()
			for _, a := range []net.Addr{c.LocalAddr(), c.RemoteAddr(), s.LocalAddr(), s.RemoteAddr()} {
				ips = append(ips, a.(*net.TCPAddr).IP)
			}
			return ips
		}
		require.Equal(t, ends(TCP), ends(Soft), "%v", at)
	}
}

func TestStreamsOfOneSessionHaveDifferentPorts(t *testing.T) {
	awaitNoSessions(t)
	ln := overSoft.listen(t)
	seen := make(map[string]bool)
	for range 100 {
		c, _ := overSoft.connect(t, ln)
		require.False(t, seen[c.LocalAddr().String()])
		seen[c.LocalAddr().String()] = true
	}
	require.Len(t, ReadStats().Sessions, 2, "two ends of one session")
}

// What two processes dial is not on one session, and neither is what two Dialers
// dial whose sessions have other limits.
func TestNoTwoConnectionsOfAListenerHaveOneAddress(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		awaitNoSessions(t)
		ln := k.listen(t)
		seen := make(map[string]bool)
		for i := range 4 {
			d := k.dialer()
			// a kernel device may pin 8 MiB
			d.Limits = Limits{RingSize: minRingSize, Window: mux.MinWindow, Streams: 700 + i}
			for range 3 {
				c, err := d.Dial("tcp", ln.Addr().String())
				require.NoError(t, err)
				defer c.Close()
				s, err := ln.Accept()
				require.NoError(t, err)
				defer s.Close()
				require.Equal(t, c.LocalAddr().String(), s.RemoteAddr().String(), "both ends tell the same")
				require.False(t, seen[s.RemoteAddr().String()], s.RemoteAddr())
				seen[s.RemoteAddr().String()] = true
			}
		}
	})
}

func TestAddressIsNotUsedAgainAtOnce(t *testing.T) {
	for _, k := range []carrier{overSoft, {name: "soft-dedicated", transport: Soft, dedicated: true}} {
		t.Run(k.name, func(t *testing.T) {
			ln := k.listen(t)
			seen := make(map[string]bool)
			for range 100 {
				c, s := k.connect(t, ln)
				require.False(t, seen[s.RemoteAddr().String()], s.RemoteAddr())
				seen[s.RemoteAddr().String()] = true
				require.NoError(t, c.Close())
				require.NoError(t, s.Close())
			}
		})
	}
}

// More streams than a client has ports: TCP would have stopped before.
func TestStreamsBeyondAllPortsHaveAddressesOfThisHost(t *testing.T) {
	var space peeraddr.Space
	ports := make(map[uint16]bool) // those that a client of another host would have
	for {
		addr, got := space.Take(netip.MustParseAddr("10.0.0.7"), false, 1<<16, 1)
		if got == 0 {
			break
		}
		for i := range got {
			ports[addr.Port()+uint16(i)] = true
		}
	}
	count := len(ports) + 3000
	ln := overSoft.listen(t)
	seen := make(map[netip.AddrPort]bool, count)
	beyond := 0
	const batch = 100 // dialed before one of them is accepted
	for len(seen) < count {
		var dialed [batch]net.Conn
		for i := range dialed {
			c, err := overSoft.dialer().Dial("tcp", ln.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			dialed[i] = c
		}
		for _, c := range dialed {
			s, err := ln.Accept()
			require.NoError(t, err)
			defer s.Close()
			addr := addrPortOf(s.RemoteAddr())
			require.Equal(t, addr, addrPortOf(c.LocalAddr()))
			require.False(t, seen[addr], addr)
			seen[addr] = true
			require.True(t, addr.Addr().IsLoopback())
			if addr.Addr() != netip.MustParseAddr("127.0.0.1") {
				beyond++
			} else {
				require.True(t, ports[addr.Port()], "%v may be a TCP connection's", addr)
			}
		}
	}
	require.NotZero(t, beyond)
	require.Less(t, beyond, len(seen)-len(ports)+2*peeraddr.FewPorts)
}

func TestAddressesAllocateNothingAfterTheFirstTime(t *testing.T) {
	c, s := overSoft.streams(t)
	for _, end := range []*Conn{c, s} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			end.LocalAddr()
			end.RemoteAddr()
		}))
		require.Same(t, end.LocalAddr(), end.LocalAddr())
	}
}

func TestFallbackGivesTheBareTCPConnection(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c, err := Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*net.TCPConn)(nil), c)
}

func TestIPv6AddressesWork(t *testing.T) {
	for _, k := range []carrier{overTCP, overSoft} {
		t.Run(k.name, func(t *testing.T) {
			ln, err := k.listenConfig().Listen(ctxBackground, "tcp", "[::1]:0")
			require.NoError(t, err)
			t.Cleanup(func() { ln.Close() })
			c, s := k.connect(t, ln)
			require.Equal(t, "::1", c.RemoteAddr().(*net.TCPAddr).IP.String())
			require.Equal(t, c.LocalAddr().String(), s.RemoteAddr().String())
		})
	}
}
