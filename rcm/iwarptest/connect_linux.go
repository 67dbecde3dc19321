// Package iwarptest connects two queue pairs of an iWARP device, for tests. A program cannot do
// that by states, as with other devices: the kernel's connection manager has the TCP connection.
package iwarptest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// Connector returns what connects two QPs of the device, which are in RESET, until the test
// ends; a dials.
func Connector(t testing.TB, device string) func(t testing.TB, a, b *verbs.QP) error {
	t.Helper()
	addr, err := addressOf(device)
	require.NoError(t, err)
	return func(t testing.TB, a, b *verbs.QP) error {
		conns, err := Connect(device, netip.AddrPortFrom(addr, nextPort()), a, b, rcm.ConnParam{
			ResponderResources: 16, InitiatorDepth: 16, Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite,
		})
		t.Cleanup(func() {
			for _, c := range conns {
				if c != nil {
					require.NoError(t, c.Disconnect())
				}
			}
		})
		return err
	}
}

// Connect connects two QPs of a device, which are in RESET, by the kernel's connection
// manager at an address of the device. a dials. It takes 20 seconds at most.
func Connect(device string, addr netip.AddrPort, a, b *verbs.QP, p rcm.ConnParam) (conns [2]rcm.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ln, err := listen(device, addr)
	if err != nil {
		return conns, err
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() { // ends with ctx
		req, err := ln.Accept(ctx)
		if err == nil {
			conns[1], err = req.Accept(ctx, b, p)
		}
		accepted <- err
	}()
	route, err := kernelcm.New(kernelcm.Config{Device: device}).Resolve(ctx, addr)
	if err == nil {
		conns[0], err = route.Connect(ctx, a, p)
	}
	if err != nil {
		cancel()
	}
	if acceptErr := <-accepted; err == nil { // ends with ctx
		err = acceptErr
	}
	return conns, err
}

// ports counts up: the kernel's TCP keeps a port for a while.
var ports atomic.Uint32

func nextPort() uint16 { return uint16(20000 + ports.Add(1)%10000) }

// addressOf returns an address of the host at which the device can be reached.
func addressOf(device string) (netip.Addr, error) {
	addrs, err := rdmahost.Addrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, addr := range addrs {
		ln, err := listen(device, netip.AddrPortFrom(addr, nextPort()))
		if err == nil {
			return addr, ln.Close()
		}
		if !errors.Is(err, rcm.ErrNoRoute) {
			return netip.Addr{}, err
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of this host is on %s", device)
}

func listen(device string, addr netip.AddrPort) (rcm.Listener, error) {
	return kernelcm.New(kernelcm.Config{Device: device}).Listen(addr, rcm.ListenConfig{})
}
