package uverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

func TestConformanceOfRxe(t *testing.T) {
	requireDevice(t, "rxe0")
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		a, b := open(t, "rxe0"), open(t, "rxe0")
		return verbstest.Pair{A: a, B: b, GIDIndexA: mappedGID(t, a), GIDIndexB: mappedGID(t, b)}
	})
}

// mappedGID is the index of the RoCE v2 GID of 10.0.0.1.
func mappedGID(t testing.TB, ctx *verbs.Context) int {
	t.Helper()
	gids, err := ctx.QueryGIDs(1)
	require.NoError(t, err)
	for _, g := range gids {
		if g.Type == verbs.GIDTypeRoCEv2 && g.GID.String() == "::ffff:10.0.0.1" {
			return g.Index
		}
	}
	require.Fail(t, "no RoCE v2 GID of 10.0.0.1", "%+v", gids)
	return 0
}
