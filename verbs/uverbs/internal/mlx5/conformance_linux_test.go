//go:build amd64 || arm64

package mlx5_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/abilities"
	"github.com/seed-b9b531af/ramjet/verbs/internal/conformance"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	model "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

func TestMain(m *testing.M) {
	modeltest.Main()
	os.Exit(m.Run())
}

// TestConformance runs the conformance test of devices on the model of a ConnectX.
func TestConformance(t *testing.T) {
	for name, config := range map[string]modeltest.Config{
		"InfiniBand":                    {},
		"RoCE":                          {Device: model.Config{Link: fabric.Ethernet}},
		"CQEs of version 0, no atomics": {Device: model.Config{CQEVersion0: true, NoAtomics: true}},
		"hostile":                       {Device: model.Config{Link: fabric.Ethernet}, Hostile: 1},
		// How commands are made is nothing to the data path.
		"write, hostile, BlueFlame": {Device: model.Config{Link: fabric.Ethernet}, WriteOnly: true, Hostile: 1, BlueFlame: true},
	} {
		drv := "mlx5"
		if config.BlueFlame {
			drv = "mlx5-blueflame"
		}
		config.Env = []string{"RAMJET_EXPERIMENTAL=" + drv}
		t.Run(name, func(t *testing.T) {
			if modeltest.On(t, config) {
				conformance.Run(t, "mlx5_0")
			}
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
	config := modeltest.Config{Device: model.Config{Link: fabric.Ethernet}, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"}}
	if modeltest.On(t, config) {
		require.NoError(t, abilities.Compare(open(t), "mlx5 on a model"))
	}
}
