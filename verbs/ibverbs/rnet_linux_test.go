//go:build amd64 || arm64

package ibverbs_test

import (
	"context"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
)

// hosts are the addresses of the devices of the model and of the virtual machine.
var hosts = map[string]string{"rxe0": "10.0.0.1", "mlx5_0": "10.77.0.1"}

// Package rnet's connections run over the provider by the kernel's connection manager, which
// knows nothing of it.
func TestConnPassesNettest(t *testing.T) {
	name := os.Getenv("RAMJET_DEVICES")
	if hosts[name] == "" {
		t.Skip("RAMJET_DEVICES names no device of which the address is known")
	}
	ctx, err := verbs.Open(name)
	require.NoError(t, err)
	require.Equal(t, ibverbs.ProviderName, ctx.Attr().Provider, "who serves the device")
	require.NoError(t, ctx.Close())
	listen := rnet.ListenConfig{Transport: rnet.RDMA}
	dial := rnet.Dialer{Transport: rnet.RDMA}
	ln, err := listen.Listen(context.Background(), "tcp", net.JoinHostPort(hosts[name], "0"))
	require.NoError(t, err)
	defer ln.Close()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		if c1, err = dial.Dial("tcp", ln.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		if c2, err = ln.Accept(); err != nil {
			c1.Close()
			return nil, nil, nil, err
		}
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}
