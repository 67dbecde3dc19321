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
	fillTCPAddr(&a.local, &a.localIP, c.st.LocalAddr())
	fillTCPAddr(&a.remote, &a.remoteIP, c.st.RemoteAddr())
	if !c.addrs.CompareAndSwap(nil, a) {
		return c.addrs.Load()
	}
	return a
}

// fillTCPAddr fills in to, whose IP is kept in memory. IPv4 takes 4 bytes, as
// in an address that package net has from a socket.
func fillTCPAddr(to *net.TCPAddr, memory *[16]byte, from netip.AddrPort) {
	ip := from.Addr()
	if ip.Is4() {
		b := ip.As4()
		copy(memory[:], b[:])
	} else {
		*memory = ip.As16()
	}
	to.IP = memory[: ip.BitLen()/8 : ip.BitLen()/8]
	to.Port = int(from.Port())
	to.Zone = ip.Zone()
}

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
