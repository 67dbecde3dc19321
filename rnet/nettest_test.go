package rnet

import (
	"fmt"
	"net"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

func TestConnPassesNettestInOneProcess(t *testing.T) {
	leak.Check(t)
	over(t, allCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			if c1, err = k.dialer().Dial("tcp", ln.Addr().String()); err != nil {
				return nil, nil, nil, err
			}
			if c2, err = ln.Accept(); err != nil {
				c1.Close()
				return nil, nil, nil, err
			}
			return c1, c2, func() { c1.Close(); c2.Close() }, nil
		})
	})
}

// between are the carriers whose ends are tested in two processes.
var between = orKernel(overTCP, overSoft, overBounceBuffer)

// Between two processes a pipe goes from this process to a child, which passes
// everything on over a connection of its own back to us: one end dials, the
// other accepts.
func TestConnPassesNettestBetweenProcesses(t *testing.T) {
	leak.Check(t)
	over(t, between, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		child := roles.Start(t, "relay", k.name, ln.Addr().String())
		relay := child.Line(t)
		nettest.TestConn(t, traffic.PipesThrough(func() (net.Conn, error) { return k.dialer().Dial("tcp", relay) }, ln))
		child.Stop()
	})
}

func init() { roles.Add("relay", relay) }

// relay accepts connections and passes each on to another address, both ways.
// Its arguments are the carrier and the address.
func relay(args []string) error {
	k, err := carrierNamed(args[0])
	if err != nil {
		return err
	}
	defer k.install()()
	ln, err := k.listenConfig().Listen(ctxBackground, "tcp", k.anyPort())
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return traffic.Relay(ln, func() (net.Conn, error) { return k.dialer().Dial("tcp", args[1]) })
}

func TestEveryCarrierHasItsName(t *testing.T) {
	for _, k := range allCarriers {
		got, err := carrierNamed(k.name)
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
}
