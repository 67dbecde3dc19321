package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"sync/atomic"
)

// The addresses of the streams of a session. The end that listens has the listener's
// address. The end that dials has no port of TCP: the listening side makes up an address
// for it, one for each slot of the stream table, and sends it (FrameAddrs) before the
// dialing side may use that slot. So both ends report the same address, and no two streams
// of a listener share one, whatever processes they come from.

// SlotAddrs is the address of each stream in a range of slots: the ports are
// consecutive as the slots are.
type SlotAddrs struct {
	Slot  uint32 // the first slot
	Count uint32
	Addr  netip.AddrPort // of the first slot
}

// addrs are the addresses of all slots that may be used. They are added under
// the session's poll lock, and read by anybody.
type addrs struct {
	list  atomic.Pointer[[]SlotAddrs] // in the order of their slots, without a gap
	slots atomic.Uint32               // how many slots have an address
	none  bool                        // the peer was told that there are no more for now
}

// add adds the next range.
func (a *addrs) add(r SlotAddrs) {
	var list []SlotAddrs
	if old := a.list.Load(); old != nil {
		list = *old
	}
	if r.Count > 0 {
		list = append(slices.Clip(list), r)
	}
	a.list.Store(&list)
	a.slots.Store(r.Slot + r.Count)
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
	r := &list[sort.Search(len(list), func(i int) bool { return list[i].Slot+list[i].Count > slot })]
	return netip.AddrPortFrom(r.Addr.Addr(), r.Addr.Port()+uint16(slot-r.Slot))
}

// The payload of FrameAddrs, 28 bytes, little endian but for the address:
//
//	0  u32 first Slot: as many as were told before
//	4  u32 count of slots; 0: there are no addresses left for now
//	8  16  IPv6 address, or IPv4 in its mapped form
//	24 u16 port of the first slot
//	26 u16 0
const AddrsLen = 28

// Put writes the payload.
func (r *SlotAddrs) Put(b *[AddrsLen]byte) {
	ip := r.Addr.Addr().As16()
	binary.LittleEndian.PutUint32(b[0:], r.Slot)
	binary.LittleEndian.PutUint32(b[4:], r.Count)
	copy(b[8:], ip[:])
	binary.LittleEndian.PutUint16(b[24:], r.Addr.Port())
	b[26], b[27] = 0, 0
}

// parseAddrs reads a range of addresses that the peer gives for the slots from
// next on, of which there may be limit in all.
func parseAddrs(payload []byte, next, limit uint32) (SlotAddrs, error) {
	if len(payload) != AddrsLen {
		return SlotAddrs{}, fmt.Errorf("%w: ADDRS of %d bytes", ErrProtocol, len(payload))
	}
	b := [AddrsLen]byte(payload) // memory that the peer may still change
	port := binary.LittleEndian.Uint16(b[24:])
	r := SlotAddrs{
		Slot: binary.LittleEndian.Uint32(b[0:]), Count: binary.LittleEndian.Uint32(b[4:]),
		Addr: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port),
	}
	switch {
	case r.Slot != next || r.Count > limit-next:
		return r, fmt.Errorf("%w: addresses for %d slots from %d on, with %d of %d told", ErrProtocol, r.Count, r.Slot, next, limit)
	case r.Count > 0 && (port == 0 || uint32(port)+r.Count > 1<<16):
		return r, fmt.Errorf("%w: %d addresses from port %d on", ErrProtocol, r.Count, port)
	}
	return r, nil
}

// firstSlots is how many slots get addresses when a session begins, if there
// are plenty. Then there are twice as many whenever half of them are in use: a
// dial that opens one stream after the other does not find them used up, and a
// slot that is free is not used again at once.
const firstSlots = 512

// The part of a client's free ports that a session gets, at most, when it
// begins, and later.
const (
	firstShare = 64
	laterShare = 4
)

// told reports whether the listening side has said which slots may be used.
func (a *addrs) told() bool { return a.list.Load() != nil }

// extend takes addresses for more slots from user, if half of those that have one are in
// use, and reports whether there is something to tell the peer. The owner of the listening
// side's poll lock calls it, or who starts the session.
func (a *addrs) extend(user User, streams *table) (r SlotAddrs, ok bool) {
	slots := int(a.slots.Load())
	if slots >= streams.limit || streams.len()*2 < slots {
		return r, false
	}
	want, share := slots, laterShare
	if slots == 0 {
		want, share = firstSlots, firstShare
	}
	want = min(want, streams.limit-slots)
	got := 0
	if !a.full() {
		r.Addr, got = user.Take(want, share)
	}
	if got == 0 && a.none {
		return r, false
	}
	a.none = got == 0
	r.Slot, r.Count = uint32(slots), uint32(got)
	a.add(r)
	streams.allow(slots + got)
	return r, true
}

// learn takes in what the listening side has said. The owner of the poll lock calls it.
func (a *addrs) learn(payload []byte, streams *table) error {
	slots := a.slots.Load()
	r, err := parseAddrs(payload, slots, uint32(streams.limit))
	if err != nil {
		return err
	}
	if r.Count > 0 && a.full() {
		return fmt.Errorf("%w: addresses in more than %d pieces", ErrProtocol, maxRanges)
	}
	a.add(r)
	if r.Count == 0 {
		streams.forbid()
		return nil
	}
	streams.allow(int(slots + r.Count))
	return nil
}

// giveAddrs gives addresses to more slots, on the side that has them to give.
func (m *Mux) giveAddrs() {
	if m.cfg.Dialed {
		return
	}
	if r, ok := m.addrs.extend(m.user, &m.streams); ok {
		m.out.sayAddrs(r)
	}
}

// ErrNoSlot: the peer has not yet said what another stream would be called.
var ErrNoSlot = errors.New("rnet: no address for another stream yet")
