package kerneltest

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { roles.Add("exchange", dialExchange) }

// dialExchange dials an address, by package net if the second argument says
// so, exchanges so many bytes, and tells over what.
func dialExchange(args []string) error {
	// TCP is not to win by the slowness of the guest
	dial := (&rnet.Dialer{HeadStart: hang.Time}).Dial
	if args[1] == "plain" {
		dial = net.Dial
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	c, err := dial("tcp", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	if err := traffic.Exchange(c, uint64(n), n); err != nil {
		return err
	}
	said := carriedBy(c)
	if err := c.Close(); err != nil { // before the parent knows that we may be ended
		return err
	}
	fmt.Println(said)
	return nil
}

// One address serves peers over each kind of device, peers of this host and
// plain TCP peers, all at once.
func TestKernelListenerServesEveryKindOfPeerAtOnce(t *testing.T) {
	devices := needsGuest(t)
	leavesDevicesAlone(t)
	ln, err := rnet.Listen("tcp", ":0")
	require.NoError(t, err)
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)

	type peer struct{ dial, host, transport, want string }
	peers := []peer{
		{"rnet", "127.0.0.1", "auto", "soft soft0"},
		{"rnet", devices[0].host, "auto", "soft soft0"},
		{"plain", "127.0.0.1", "", "tcp"},
		{"plain", devices[0].host, "", "tcp"},
	}
	for _, k := range devices {
		peers = append(peers, peer{"rnet", k.host, "rdma", "rdma " + k.name})
	}
	var children []*roles.Process
	var conns []net.Conn // answered only when all are there
	for i, p := range peers {
		address := net.JoinHostPort(p.host, port)
		children = append(children, roles.StartAs(t, alsoEnv("RNET_TRANSPORT="+p.transport), "exchange", address, p.dial, fmt.Sprint(100<<10+i)))
		c := acceptOne(t, ln)
		require.Equal(t, p.want, carriedBy(c), "%v", p)
		conns = append(conns, c)
	}

	var work sync.WaitGroup
	for _, c := range conns {
		work.Go(func() { assert.NoError(t, traffic.AnswerExchange(c), "over %s", carriedBy(c)) })
	}
	hang.Start(t, work.Wait)()
	for i, child := range children {
		require.Equal(t, peers[i].want, child.Line(t))
	}
}
