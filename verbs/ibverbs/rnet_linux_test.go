//go:build amd64 || arm64

package ibverbs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// hosts are the addresses of the devices of the model and of the virtual machine.
var hosts = map[string]string{"rxe0": "10.0.0.1", "siw0": "10.0.2.1", "mlx5_0": "10.77.0.1"}

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

// On two hosts this end has the C library and the other one our driver: connections that each of
// them dials. The other one sends back what this one sends and compares.
func TestOurDriverAtTheOtherEnd(t *testing.T) {
	const port = "9100"
	peer := os.Getenv("RAMJET_PEER")
	own := map[string]string{"10.77.0.1": "10.77.0.2", "10.77.0.2": "10.77.0.1"}[peer]
	if own == "" {
		t.Skip("this is for two hosts")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ln, err := (&rnet.ListenConfig{Transport: rnet.RDMA}).Listen(ctx, "tcp", net.JoinHostPort(own, port))
	require.NoError(t, err)
	defer ln.Close()
	exchange, provider := echo, uverbs.ProviderName
	if os.Getenv("RAMJET_ROLE") != "peer" {
		exchange, provider = compare, ibverbs.ProviderName
	}
	dev, err := verbs.Open("mlx5_0")
	require.NoError(t, err)
	require.Equal(t, provider, dev.Attr().Provider, "who serves the device")
	require.NoError(t, dev.Close())
	accepted := make(chan error, 1)
	go func() { // ends with the listener, or the connection's deadline
		c, err := ln.Accept()
		if err == nil {
			err = exchange(ctx, c)
		}
		accepted <- err
	}()
	var c net.Conn
	for c == nil {
		c, err = (&rnet.Dialer{Transport: rnet.RDMA}).DialContext(ctx, "tcp", net.JoinHostPort(peer, port))
		if err != nil { // the other host may not listen yet
			require.NoError(t, ctx.Err(), "%v", err)
			time.Sleep(10 * time.Millisecond)
		}
	}
	require.NoError(t, exchange(ctx, c))
	require.NoError(t, <-accepted) // ends with its exchange
	for _, s := range rnet.ReadStats().Sessions {
		require.Equal(t, "mlx5_0", s.Device)
	}
}

func echo(ctx context.Context, c net.Conn) error {
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline) // fails with a closed connection, which the next call shows
	_, err := io.Copy(c, c)
	return err
}

// compare sends messages of many sizes, and ends the connection.
func compare(ctx context.Context, c net.Conn) error {
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline) // fails with a closed connection, which the next call shows
	for n := 1; n <= 1<<21; n = n*3 + 1 {
		sent, got := make([]byte, n), make([]byte, n)
		for i := range sent {
			sent[i] = byte(i>>8)*31 + byte(i) + byte(n)
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			wrote <- err
		}()
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if err := <-wrote; err != nil { // ends with the connection's deadline
			return err
		}
		if !bytes.Equal(sent, got) {
			return fmt.Errorf("%d bytes came back changed", n)
		}
	}
	return nil
}
