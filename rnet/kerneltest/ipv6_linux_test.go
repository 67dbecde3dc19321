package kerneltest

import (
	"net"
	"net/netip"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/require"
)

// kernelHosts6 are the devices' addresses of IPv6.
var kernelHosts6 = map[string]string{"rxe0": "fd00::1", "siw0": "fd00:2::1"}

// requireHosts requires both ends of a connection over the device to
// have an address of the host.
func (k device) requireHosts(t testing.TB, dialed net.Conn, host string) {
	t.Helper()
	require.Equal(t, "rdma "+k.name, carriedBy(dialed))
	for _, addr := range []net.Addr{dialed.LocalAddr(), dialed.RemoteAddr()} {
		require.Equal(t, netip.MustParseAddr(host), addr.(*net.TCPAddr).AddrPort().Addr())
	}
}

// A device is reached by its IPv6 address, by a listener there as by one at
// any address, which IPv4 reaches too.
func TestKernelCarriesBothFamilies(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		v4, v6 := k.host, kernelHosts6[k.name]
		for _, tc := range []struct {
			name, network, host string
			reachedBy           []string
		}{
			{"IPv6 address", "tcp", v6, []string{v6}},
			{"IPv6 address of tcp6", "tcp6", v6, []string{v6}},
			{"any address", "tcp", "", []string{v4, v6}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				ln, err := rnet.Listen(tc.network, net.JoinHostPort(tc.host, "0"))
				require.NoError(t, err)
				defer ln.Close()
				go traffic.Serve(ln)
				for _, host := range tc.reachedBy {
					c := dialMode(t, &rnet.Dialer{Device: k.name, HeadStart: hang.Time}, portOf(t, ln, host), traffic.Exchanging)
					k.requireHosts(t, c, host)
					require.NoError(t, traffic.Exchange(c, 1, 50<<10))
					require.NoError(t, c.Close())
				}
			})
		}
	})
}
