//go:build amd64 || arm64

package ibverbs_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs" // what has to stand back
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

func TestMain(m *testing.M) {
	os.Setenv(verbs.ProvidersVar, ibverbs.ProviderName)
	leak.Main(m)
}

// open opens a device of the provider. The test is skipped where there is none.
func open(t testing.TB, driver string) *verbs.Context {
	t.Helper()
	list, err := verbs.Devices()
	require.NoError(t, err)
	for _, d := range list {
		if d.Driver == driver {
			ctx, err := verbs.Open(d.Name)
			require.NoError(t, err)
			require.Equal(t, ibverbs.ProviderName, ctx.Attr().Provider)
			t.Cleanup(func() { require.NoError(t, ctx.Close()) })
			return ctx
		}
	}
	t.Skipf("there is no RDMA device of %s", driver)
	return nil
}

// gid is the index of the GID of a port that RoCE v2 uses with IPv4, 0 if it has none.
func gid(t testing.TB, ctx *verbs.Context) int {
	t.Helper()
	list, err := ctx.QueryGIDs(1)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, g := range list {
		if g.Type == verbs.GIDTypeRoCEv2 && g.GID[10] == 0xff {
			return g.Index
		}
	}
	return 0
}

func TestConformanceOfConnectX(t *testing.T) {
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		a, b := open(t, "mlx5"), open(t, "mlx5")
		return verbstest.Pair{A: a, B: b, GIDIndexA: gid(t, a), GIDIndexB: gid(t, b), Lacks: verbstest.LackSRQBound}
	})
}
