package verbs

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPacketsOfIPv4AddressesHaveItsHeader(t *testing.T) {
	from := GID(netip.MustParseAddr("::ffff:192.168.0.1").As16())
	to := AddressVector{DGID: netip.MustParseAddr("::ffff:192.168.0.199").As16(), HopLimit: 64}
	require.Equal(t, "45000073000040004011b861c0a80001c0a800c7", hex.EncodeToString(ipHeader(from, &to, 0x73-20)),
		"the example of en.wikipedia.org/wiki/Internet_checksum")
}

// The packets of a datagram come from the address of its AH, not from that of the QP.
func TestPacketsOfADatagramComeFromItsAH(t *testing.T) {
	drv := twoPorts{gids: []GIDEntry{
		{GID: GID{15: 1}, Index: 0, Port: 1}, {GID: GID{15: 2}, Index: 3, Port: 1}, {GID: GID{15: 3}, Index: 3, Port: 2},
	}}
	qp := &QP{pd: &PD{ctx: &Context{drv: drv}}}
	f := &flow{sources: make(map[source]GID)}
	for range 2 {
		require.Equal(t, GID{15: 1}, f.from(qp, 0, &AddressVector{}))
		require.Equal(t, GID{15: 2}, f.from(qp, 1, &AddressVector{SGIDIndex: 3}))
		require.Equal(t, GID{15: 3}, f.from(qp, 2, &AddressVector{SGIDIndex: 3}))
		require.Zero(t, f.from(qp, 2, &AddressVector{}))
	}
}

// twoPorts is the GID table of a device with two ports, which no device has that is here.
type twoPorts struct {
	ContextDriver
	gids []GIDEntry
}

func (p twoPorts) QueryGIDs(port uint8) (gids []GIDEntry, err error) {
	for _, g := range p.gids {
		if g.Port == port {
			gids = append(gids, g)
		}
	}
	return gids, nil
}
