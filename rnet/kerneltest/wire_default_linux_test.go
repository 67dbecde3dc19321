package kerneltest

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/require"
)

func init() { roles.Add("wildcard", serveWildcard) }

// serveWildcard listens at any address, by package net if its argument says
// so, says at which port, and does with each connection what its first byte
// says.
func serveWildcard(args []string) error {
	listen := rnet.Listen
	if args[0] == "plain" {
		listen = net.Listen
	}
	ln, err := listen("tcp", ":0")
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return err
	}
	fmt.Println(port)
	return traffic.Serve(ln)
}

// peersHosts are the addresses of the peer's machine.
func peersHosts() []string {
	v4 := testhost.Peer()
	return []string{v4, map[string]string{"10.1.0.1": "fd01::1", "10.1.0.2": "fd01::2"}[v4]}
}

// A program that says nothing of transports and devices gets the device that
// the address leads to.
func TestWireDefaultDialTakesTheDevice(t *testing.T) {
	devices := needsWire(t) // of several on the wire the first is RoCE's, which is tried first
	leavesDevicesAlone(t)
	leavesPeersDevicesAlone(t)
	port := startOnPeer(t, "wildcard", "rnet").line(t)
	for _, host := range peersHosts() {
		t.Run(host, func(t *testing.T) {
			address := net.JoinHostPort(host, port)
			// The head start is long because the guest is slow.
			exchangeOver(t, &rnet.Dialer{HeadStart: hang.Time}, address, "rdma "+devices[0].name)
			told := rnet.Explain(address)
			last := told[len(told)-1]
			require.Equal(t, rnet.RDMA, last.Transport)
			require.Equal(t, "none", last.Reason)
		})
	}
}

// A server on another machine that knows nothing of ramjet is reached over
// TCP, by a connection of package net that nothing is wrapped around, and not
// only after the head start.
func TestWireDialReachesAPlainTCPServer(t *testing.T) {
	needsWire(t)
	leavesDevicesAlone(t)
	leavesPeersDevicesAlone(t)
	port := startOnPeer(t, "wildcard", "plain").line(t)
	for _, host := range peersHosts() {
		t.Run(host, func(t *testing.T) {
			address := net.JoinHostPort(host, port)
			begun := time.Now()
			c, err := (&rnet.Dialer{HeadStart: wirePatience}).Dial("tcp", address)
			require.NoError(t, err)
			defer c.Close()
			require.Less(t, time.Since(begun), hang.Time)
			t.Logf("dialed in %v", time.Since(begun))
			require.IsType(t, (*net.TCPConn)(nil), c)
			_, err = c.Write([]byte{traffic.Exchanging})
			require.NoError(t, err)
			require.NoError(t, traffic.Exchange(c, 1, 50<<10))
			told := rnet.Explain(address)
			last := told[len(told)-1]
			require.Equal(t, rnet.TCP, last.Transport)
			require.Equal(t, "no-listener", last.Reason, "%v", last)
		})
	}
	// the function that most programs call
	c, err := rnet.Dial("tcp", net.JoinHostPort(peersHosts()[0], port))
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), c)
	require.NoError(t, c.Close())
}
