package rnet

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
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

// Drivers that look for a file descriptor would read from it: there must be
// none to find.
func TestConnHasNoFileDescriptor(t *testing.T) {
	c, s := overSoft.streams(t)
	for _, end := range []any{c, s} {
		_, ok := end.(syscall.Conn)
		require.False(t, ok)
		_, ok = end.(interface{ File() })
		require.False(t, ok)
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
