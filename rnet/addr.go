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

// localAddr and remoteAddr return the addresses of a stream. The dialing side
// has no port; both ends make the same one up from the stream's id, so that
// logs of both can be matched.
func (c *Conn) localAddr() netip.AddrPort  { return streamAddr(c.s.localAddr, c.s.dialed, c.id) }
func (c *Conn) remoteAddr() netip.AddrPort { return streamAddr(c.s.remoteAddr, !c.s.dialed, c.id) }

func streamAddr(addr netip.AddrPort, dialing bool, id uint32) netip.AddrPort {
	if dialing {
		return netip.AddrPortFrom(addr.Addr(), uint16(firstStreamPort+id&slotMask%streamPorts))
	}
	return addr
}

// addrPortOf returns the address of a listener.
func addrPortOf(addr net.Addr) netip.AddrPort {
	ap := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
