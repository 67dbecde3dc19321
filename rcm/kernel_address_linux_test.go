package rcm

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheAddressesOfTheHostAreThoseOfItsInterfaces(t *testing.T) {
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	var want []netip.Addr
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
			require.True(t, ok)
			ip = ip.Unmap()
			if ip.Is6() && ip.IsLinkLocalUnicast() {
				ip = ip.WithZone(i.Name)
			}
			if !ip.IsLoopback() {
				want = append(want, ip)
			}
		}
	}
	got, err := interfaceAddrs()
	require.NoError(t, err)
	slices.SortFunc(want, netip.Addr.Compare)
	slices.SortFunc(got, netip.Addr.Compare)
	require.Equal(t, want, got)
}
