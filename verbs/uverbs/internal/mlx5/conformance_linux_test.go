//go:build amd64 || arm64

package mlx5_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/abilities"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
	model "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

func TestMain(m *testing.M) {
	modeltest.Main()
	os.Exit(m.Run())
}

// TestConformance runs verbstest on the model of a ConnectX.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name   string
		config modeltest.Config
		gid    int
	}{
		{"InfiniBand", modeltest.Config{}, 0},
		{"RoCE", modeltest.Config{Device: model.Config{Link: model.Ethernet}}, 3},
		{"write", modeltest.Config{Device: model.Config{Link: model.Ethernet}, WriteOnly: true}, 3},
		{"hostile", modeltest.Config{Device: model.Config{Link: model.Ethernet}, Hostile: 1}, 3},
	} {
		c.config.Env = []string{"RAMJET_EXPERIMENTAL=mlx5"}
		t.Run(c.name, func(t *testing.T) {
			if !modeltest.On(t, c.config) {
				return
			}
			verbstest.Run(t, func(t testing.TB) verbstest.Pair {
				return verbstest.Pair{A: open(t), B: open(t), GIDIndexA: c.gid, GIDIndexB: c.gid}
			})
		})
	}
}

func open(t testing.TB) *verbs.Context {
	t.Helper()
	ctx, err := verbs.Open("mlx5_0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	return ctx
}

// TestTheModelIsAsInTheTable compares what docs/verbs.md says.
func TestTheModelIsAsInTheTable(t *testing.T) {
	config := modeltest.Config{Device: model.Config{Link: model.Ethernet}, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"}}
	if modeltest.On(t, config) {
		require.NoError(t, abilities.Compare(open(t), "mlx5 on a model"))
	}
}
