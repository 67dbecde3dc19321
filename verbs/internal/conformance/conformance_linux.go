// Package conformance runs the tests that every provider passes (package verbstest)
// on a device of the kernel, whichever it is.
package conformance

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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
	// Its kernel driver makes the keys of regions without the right to be taken away
	// (en_rinval), and sees nothing of binds.
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

// Connector returns what connects two QPs of an iWARP device, which are in RESET. A connection
// manager has to do that.
type Connector func(t testing.TB, device string) (connect func(t testing.TB, a, b *verbs.QP) error)

// Run runs the tests between QPs of one device, of its first port, which must be up. Only
// for an iWARP device it calls connector.
func Run(t *testing.T, device string, connector Connector) {
	liftPinningLimit(t)
	var p verbstest.Pair
	ctx := open(t, device)
	port, err := ctx.QueryPort(1)
	require.NoError(t, err)
	require.Equal(t, verbs.PortActive, port.State, "port 1 of %s", device)
	var connect func(t testing.TB, a, b *verbs.QP) error
	if ctx.Attr().Transport == verbs.TransportIWARP {
		connect = connector(t, device)
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
		if connect != nil {
			pair.Connect = func(a, b *verbs.QP) error { return connect(t, a, b) }
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
