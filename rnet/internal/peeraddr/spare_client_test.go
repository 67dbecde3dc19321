package peeraddr

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// A client says itself what address it has, and may say a spare one, that of a stream it is given
// later. No address is given to two sessions, and the count of what is free stays right.
func TestClientWithASpareAddressConfusesNobody(t *testing.T) {
	var s Space
	type held struct {
		ip netip.Addr
		of mux.SlotAddrs
	}
	var all []held
	inUse := map[netip.AddrPort]bool{}
	take := func(ip netip.Addr) (mux.SlotAddrs, bool) {
		at, n := s.Take(ip, true, 512, 4)
		r := mux.SlotAddrs{Count: uint32(n), Addr: at}
		for i := range uint16(n) {
			one := netip.AddrPortFrom(at.Addr(), at.Port()+i)
			if inUse[one] {
				t.Fatalf("%v is given twice", one)
			}
			inUse[one] = true
		}
		all = append(all, held{ip, r})
		return r, at.Addr() != ip
	}
	give := func(h held) {
		for i := range uint16(h.of.Count) {
			delete(inUse, netip.AddrPortFrom(h.of.Addr.Addr(), h.of.Addr.Port()+i))
		}
		s.Give(h.ip, []mux.SlotAddrs{h.of})
	}
	// A spare address, which tells of the next one.
	last := netip.Addr{}
	for spare := false; !spare; {
		var r mux.SlotAddrs
		r, spare = take(netip.MustParseAddr("127.0.0.1"))
		last = r.Addr.Addr()
	}
	hostile := last.Next()
	if !hostile.Is4() || hostile.As4()[1] < 128 {
		hostile = netip.MustParseAddr("127.128.0.0")
	}
	for range 400 { // until it has been given its own address as a spare one
		take(hostile)
	}
	for _, h := range all {
		give(h)
	}
	all = nil
	for range 2000 {
		take(hostile)
	}
	for _, h := range all {
		give(h)
	}
	require.Empty(t, s.spare)
	require.Empty(t, s.hosts)
}
