package rnet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sort"
	"sync/atomic"
)

// What the streams of a session are called. The end that listens has the
// listener's address. The end that dials has no port of TCP: the listening side
// makes up an address for it, and for each slot of the stream table it says so
// before the dialing side may use that slot (frameAddrs). So both ends tell the
// same address, and no two streams of a listener share one, whatever processes
// they come from.

// slotAddrs is the address of each stream in a range of slots: the ports are
// consecutive as the slots are.
type slotAddrs struct {
	slot  uint32 // the first slot
	count uint32
	addr  netip.AddrPort // of the first slot
}

// addrs are the addresses of all slots that may be used. They are added under
// the session's poll lock, and read by anybody.
type addrs struct {
	list  atomic.Pointer[[]slotAddrs] // in the order of their slots, without a gap
	slots atomic.Uint32               // how many slots have an address
}

// add adds the next range.
func (a *addrs) add(r slotAddrs) {
	var list []slotAddrs
	if old := a.list.Load(); old != nil {
		list = *old
	}
	if r.count > 0 {
		list = append(slices.Clip(list), r)
	}
	a.list.Store(&list)
	a.slots.Store(r.slot + r.count)
}

// full reports whether a session has as many ranges as it may have.
func (a *addrs) full() bool {
	list := a.list.Load()
	return list != nil && len(*list) >= maxRanges
}

// maxRanges bounds how many ranges a session has. Each has twice as many slots
// as the one before it, unless addresses are scarce.
const maxRanges = 1024

// at returns the address of the stream in a slot.
func (a *addrs) at(slot uint32) netip.AddrPort {
	list := *a.list.Load() // a slot is used only when it has one
	r := &list[sort.Search(len(list), func(i int) bool { return list[i].slot+list[i].count > slot })]
	return netip.AddrPortFrom(r.addr.Addr(), r.addr.Port()+uint16(slot-r.slot))
}

// The payload of frameAddrs, 28 bytes, little endian but for the address:
//
//	0  u32 first slot: as many as were told before
//	4  u32 count of slots; 0: there are no addresses left for now
//	8  16  IPv6 address, or IPv4 in its mapped form
//	24 u16 port of the first slot
//	26 u16 0
const addrsLen = 28

func (r *slotAddrs) put(b *[addrsLen]byte) {
	ip := r.addr.Addr().As16()
	binary.LittleEndian.PutUint32(b[0:], r.slot)
	binary.LittleEndian.PutUint32(b[4:], r.count)
	copy(b[8:], ip[:])
	binary.LittleEndian.PutUint16(b[24:], r.addr.Port())
	b[26], b[27] = 0, 0
}

// parseAddrs reads a range of addresses that the peer gives for the slots from
// next on, of which there may be limit in all.
func parseAddrs(payload []byte, next, limit uint32) (slotAddrs, error) {
	if len(payload) != addrsLen {
		return slotAddrs{}, fmt.Errorf("%w: ADDRS of %d bytes", errProtocol, len(payload))
	}
	b := [addrsLen]byte(payload) // memory that the peer may still change
	port := binary.LittleEndian.Uint16(b[24:])
	r := slotAddrs{
		slot: binary.LittleEndian.Uint32(b[0:]), count: binary.LittleEndian.Uint32(b[4:]),
		addr: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port),
	}
	switch {
	case r.slot != next || r.count > limit-next:
		return r, fmt.Errorf("%w: addresses for %d slots from %d on, with %d of %d told", errProtocol, r.count, r.slot, next, limit)
	case r.count > 0 && (port == 0 || uint32(port)+r.count > 1<<16):
		return r, fmt.Errorf("%w: %d addresses from port %d on", errProtocol, r.count, port)
	}
	return r, nil
}

// dialingAddr returns the address of the end of the stream that dialed.
func (c *Conn) dialingAddr() netip.AddrPort {
	return c.s.addrs.at(c.id & slotMask)
}

// localAddr and remoteAddr return the addresses of a stream.
func (c *Conn) localAddr() netip.AddrPort {
	if c.s.dialed {
		return c.dialingAddr()
	}
	return c.s.localAddr
}

func (c *Conn) remoteAddr() netip.AddrPort {
	if c.s.dialed {
		return c.s.remoteAddr
	}
	return c.dialingAddr()
}

// connAddrs are a stream's addresses as package net has them. They are made
// when somebody asks for one, and kept: who asks again gets the same ones.
type connAddrs struct {
	local, remote     net.TCPAddr
	localIP, remoteIP [16]byte
}

func (c *Conn) tcpAddrs() *connAddrs {
	if a := c.addrs.Load(); a != nil {
		return a
	}
	a := new(connAddrs)
	fillTCPAddr(&a.local, &a.localIP, c.localAddr())
	fillTCPAddr(&a.remote, &a.remoteIP, c.remoteAddr())
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

// addrPortOf returns the address of a listener.
func addrPortOf(addr net.Addr) netip.AddrPort {
	ap := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
