package mux

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddressesSurviveTheWire(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:1024", "[::1]:65000", "10.1.2.3:65535"} {
		r := SlotAddrs{Slot: 7, Count: 1, Addr: netip.MustParseAddrPort(addr)}
		var b [AddrsLen]byte
		r.Put(&b)
		got, err := parseAddrs(b[:], 7, 8)
		require.NoError(t, err)
		require.Equal(t, r, got)
		for _, next := range []uint32{6, 8} {
			_, err = parseAddrs(b[:], next, 100)
			require.ErrorIs(t, err, ErrProtocol, "a gap or an overlap")
		}
		_, err = parseAddrs(b[:AddrsLen-1], 7, 8)
		require.ErrorIs(t, err, ErrProtocol)
		_, err = parseAddrs(b[:], 7, 7)
		require.ErrorIs(t, err, ErrProtocol, "beyond the limit")
		r.Count = 1<<16 - uint32(r.Addr.Port()) + 1
		r.Put(&b)
		_, err = parseAddrs(b[:], 7, 1<<20)
		require.ErrorIs(t, err, ErrProtocol, "beyond the last port")
	}
}
