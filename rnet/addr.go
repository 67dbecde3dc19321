package rnet

import (
	"net"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/rcm/softcm"
)

// connAddrs are a stream's addresses as package net has them. They are made
// at the first call that asks for one, and kept: later calls return the same ones.
type connAddrs struct {
	local, remote     net.TCPAddr
	localIP, remoteIP [16]byte
}

func (c *Conn) tcpAddrs() *connAddrs {
	if a := c.addrs.Load(); a != nil {
		return a
	}
	a := new(connAddrs)
	in6 := c.s.listener != nil && c.s.listener.servesIPv6()
	fillTCPAddr(&a.local, &a.localIP, c.st.LocalAddr(), in6)
	fillTCPAddr(&a.remote, &a.remoteIP, c.st.RemoteAddr(), in6)
	if !c.addrs.CompareAndSwap(nil, a) {
		return c.addrs.Load()
	}
	return a
}

// fillTCPAddr fills in to, whose IP is kept in memory. IPv4 takes 4 bytes, as
// in an address that package net has from a socket, or 16 if that is one of IPv6.
func fillTCPAddr(to *net.TCPAddr, memory *[16]byte, from netip.AddrPort, in6 bool) {
	ip := from.Addr()
	if ip.Is4() && !in6 {
		b := ip.As4()
		to.IP = memory[:copy(memory[:], b[:]):len(b)]
	} else {
		*memory = ip.As16()
		to.IP = memory[:]
	}
	to.Port = int(from.Port())
	to.Zone = ip.Zone()
}

// servesIPv6 reports whether the socket is one of IPv6, which may serve IPv4 too.
func (l *Listener) servesIPv6() bool { return l.addr.(*net.TCPAddr).IP.To4() == nil }

// addrPort returns the address at which the listeners of the fabrics are.
func (l *Listener) addrPort() netip.AddrPort {
	if l.atUnixSocket() {
		return softcm.UnixSocketAddr
	}
	return addrPortOf(l.addr)
}

// addrPortOf returns an address of TCP.
func addrPortOf(addr net.Addr) netip.AddrPort {
	ap := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
