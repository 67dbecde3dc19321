package rdmahost

import (
	"net/netip"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// PreferredGID chooses the row of a RoCE port's GID table from which to
// connect from the local address addr. Without an address (the zero
// netip.Addr) any row will do, an IPv4-mapped one first.
//
// RoCE v2 comes before v1, which routers do not forward. Among rows of one
// type the address itself comes first, then its address family, then the
// other family; link-local rows come last, unless addr is link-local, because
// they are good for one link only and every netdev has the same kind of them.
// Of equal rows the first wins. ok is false if the table has no RoCE row.
func PreferredGID(table []verbs.GIDEntry, addr netip.Addr) (e verbs.GIDEntry, ok bool) {
	best := -1
	for _, row := range table {
		if score := scoreGID(row, addr); score > best {
			best, e = score, row
		}
	}
	return e, best >= 0
}

// The weights of scoreGID, each above the sum of those below it.
const (
	gidV2      = 16
	gidExact   = 8
	gidGlobal  = 4
	gidFamily  = 2
	gidIPv4    = 1
	gidUnfit   = -1
	gidAnyRoCE = 0
)

func scoreGID(row verbs.GIDEntry, addr netip.Addr) int {
	score := gidAnyRoCE
	switch row.Type {
	case verbs.GIDTypeRoCEv2:
		score += gidV2
	case verbs.GIDTypeRoCEv1:
	default:
		return gidUnfit
	}
	ip := netip.AddrFrom16(row.GID).Unmap()
	if ip.IsUnspecified() {
		return gidUnfit
	}
	want := addr.Unmap().WithZone("")
	if ip == want {
		score += gidExact
	}
	if ip.IsLinkLocalUnicast() == want.IsLinkLocalUnicast() {
		score += gidGlobal
	}
	if want.IsValid() && ip.Is4() == want.Is4() {
		score += gidFamily
	}
	if ip.Is4() {
		score += gidIPv4
	}
	return score
}
