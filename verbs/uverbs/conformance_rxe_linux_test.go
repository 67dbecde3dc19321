package uverbs_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

func TestConformanceOfRxe(t *testing.T) {
	requireDevice(t, "rxe0")
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		a, b := open(t, "rxe0"), open(t, "rxe0")
		return verbstest.Pair{
			A: a, B: b, GIDIndexA: mappedGID(t, a), GIDIndexB: mappedGID(t, b), Also: rxeStatuses, Lacks: rxeLacks(t),
		}
	})
}

// rxeStatuses are the statuses by which the kernel's driver says what the
// specification has others for. It has one for all that is wrong with local
// memory and requests, and one for receives that are too short. That of 6.12
// flushes a request that it has found wrong with those behind it.
var rxeStatuses = map[verbs.WCStatus][]verbs.WCStatus{
	verbs.WCLocProtErr:   {verbs.WCLocQPOpErr, verbs.WCWRFlushErr},
	verbs.WCLocLenErr:    {verbs.WCLocQPOpErr},
	verbs.WCRemInvReqErr: {verbs.WCRemOpErr},
	verbs.WCMWBindErr:    {verbs.WCWRFlushErr},
}

// rxeLacks is what the kernel's driver does not do, of 6.1 and 6.12.
func rxeLacks(t testing.TB) verbstest.Lack {
	t.Helper()
	lacks := verbstest.LackAccessEvent | verbstest.LackRegionInvalidation | verbstest.LackWindowBounds |
		verbstest.LackPrivilegedQKey
	var name unix.Utsname
	require.NoError(t, unix.Uname(&name))
	if release := unix.ByteSliceToString(name.Release[:]); !strings.HasPrefix(release, "6.1.") {
		lacks |= verbstest.LackFlushEvent
	}
	return lacks
}

// mappedGID is the index of the RoCE v2 GID of 10.0.0.1.
func mappedGID(t testing.TB, ctx *verbs.Context) int {
	t.Helper()
	gid, err := roceGID(ctx)
	require.NoError(t, err)
	return gid.Index
}
