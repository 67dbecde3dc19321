// Package conformance runs the tests that every provider passes (package verbstest)
// on a device of the kernel, whichever it is.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

// difference is how a driver of the kernel differs from the specification.
type difference struct {
	// also are the statuses by which it says what the specification has others for.
	also map[verbs.WCStatus][]verbs.WCStatus
	// lacks is what it does not do, by the kernel's release ("6.1.170").
	lacks func(release string) verbstest.Lack
}

// differences are those of the kernel's drivers by name; one that is not here has none.
var differences = map[string]difference{
	// Its kernel driver makes the keys of regions without the right to be taken away (en_rinval), and sees
	// nothing of binds.
	"mlx5": {lacks: func(string) verbstest.Lack { return verbstest.LackRegionInvalidation | verbstest.LackBoundRegion }},
	"rxe": {
		// It has one status for all that is wrong with local memory and requests, and one
		// for receives that are too short. That of 6.12 flushes a request that it has
		// found wrong with those behind it.
		also: map[verbs.WCStatus][]verbs.WCStatus{
			verbs.WCLocProtErr:   {verbs.WCLocQPOpErr, verbs.WCWRFlushErr},
			verbs.WCLocLenErr:    {verbs.WCLocQPOpErr},
			verbs.WCRemInvReqErr: {verbs.WCRemOpErr},
			verbs.WCMWBindErr:    {verbs.WCWRFlushErr},
		},
		lacks: func(release string) verbstest.Lack {
			lacks := verbstest.LackAccessEvent | verbstest.LackRegionInvalidation | verbstest.LackWindowBounds |
				verbstest.LackPrivilegedQKey | verbstest.LackSQE
			if !strings.HasPrefix(release, "6.1.") {
				lacks |= verbstest.LackFlushEvent
			}
			return lacks
		},
	},
}

// lacks are what providers over other software do not do, by their name and that of the
// driver.
var lacks = map[[2]string]verbstest.Lack{
	{"ibverbs", "mlx5"}: verbstest.LackSRQBound | verbstest.LackBoundAfterSQE,
	{"ibverbs", "rxe"}:  verbstest.LackSRQBound | verbstest.LackLateRefusal | verbstest.LackResume,
}

// Run runs the tests between QPs of one device, of its first port, which must be up.
func Run(t *testing.T, device string) {
	liftPinningLimit(t)
	var p verbstest.Pair
	ctx := open(t, device)
	port, err := ctx.QueryPort(1)
	require.NoError(t, err)
	require.Equal(t, verbs.PortActive, port.State, "port 1 of %s", device)
	var addr netip.Addr // iWARP: where the device is reached
	if ctx.Attr().Transport == verbs.TransportIWARP {
		addr, err = addressOf(device)
		require.NoError(t, err)
	} else {
		gids, err := ctx.QueryGIDs(1)
		require.NoError(t, err)
		gid, _ := rdmahost.PreferredGID(gids, netip.Addr{}) // of InfiniBand the first
		p.GIDIndexA, p.GIDIndexB = gid.Index, gid.Index
	}
	d := differences[ctx.Attr().Driver]
	p.Also = d.also
	if d.lacks != nil {
		p.Lacks = d.lacks(release(t))
	}
	p.Lacks |= lacks[[2]string{ctx.Attr().Provider, ctx.Attr().Driver}]
	t.Logf("%s: %+v, from GID %d", device, ctx.Attr().DeviceInfo, p.GIDIndexA)
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		pair := p
		pair.A, pair.B = open(t, device), open(t, device)
		if addr.IsValid() {
			pair.Connect = func(a, b *verbs.QP) error { return connect(t, device, addr, a, b) }
		}
		return pair
	})
}

func open(t testing.TB, device string) *verbs.Context {
	t.Helper()
	ctx, err := verbs.Open(device)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	return ctx
}

func release(t testing.TB) string {
	t.Helper()
	var name unix.Utsname
	require.NoError(t, unix.Uname(&name))
	return unix.ByteSliceToString(name.Release[:])
}

// liftPinningLimit lifts RLIMIT_MEMLOCK, which siw applies to root too. Where that is not
// allowed, the tests have to do with what there is.
func liftPinningLimit(t testing.TB) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all); err != nil {
		t.Logf("RLIMIT_MEMLOCK stays at %d: %v", old.Cur, err)
		return
	}
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)) })
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

// connect connects two QPs in RESET by the kernel's connection manager; a dials.
func connect(t testing.TB, device string, addr netip.Addr, a, b *verbs.QP) error {
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
