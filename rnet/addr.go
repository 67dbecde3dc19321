package rnet

import (
	"net"
	"net/netip"
)

// The ports that streams show on their dialing side: those that Linux gives
// to outgoing TCP connections by default.
const (
	firstStreamPort = 32768
	streamPorts     = 60999 - firstStreamPort + 1
)

// streamAddr returns an address of a stream as package net shows it. The
// dialing side of a stream has no port; both ends make the same one up from
// the stream's id, so that logs of both can be matched.
func (s *session) streamAddr(id uint32, dialing bool, addr netip.AddrPort) net.Addr {
	if dialing {
		addr = netip.AddrPortFrom(addr.Addr(), uint16(firstStreamPort+id&slotMask%streamPorts))
	}
	return net.TCPAddrFromAddrPort(addr)
}
