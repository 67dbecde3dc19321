//go:build amd64 || arm64

package ibverbs_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/bench/verbsperf"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rcm/iwarptest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/abilities"
	"github.com/seed-b9b531af/ramjet/verbs/internal/conformance"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs" // what has to stand back
)

func TestMain(m *testing.M) {
	os.Setenv(verbs.ProvidersVar, ibverbs.ProviderName)
	if os.Getenv("RAMJET_ROLE") == "peer" { // the second of two hosts
		os.Setenv(verbs.ProvidersVar, uverbs.ProviderName)
	}
	if len(os.Args) > 1 && os.Args[1] == verbsperf.Page { // the server of TestBenchVerbs
		verbsperf.Main(os.Args[2:])
	}
	leak.Main(m)
}

func TestConformance(t *testing.T) {
	device := os.Getenv("RAMJET_DEVICES")
	if device == "" {
		t.Skip("RAMJET_DEVICES names no device")
	}
	ctx, err := verbs.Open(device)
	require.NoError(t, err)
	require.Equal(t, ibverbs.ProviderName, ctx.Attr().Provider, "who serves the device")
	require.NoError(t, ctx.Close())
	conformance.Run(t, device, iwarptest.Connector)
}

// TestDevicesAreAsInTheTable compares what docs/verbs.md says.
func TestDevicesAreAsInTheTable(t *testing.T) {
	device := os.Getenv("RAMJET_DEVICES")
	if device != "mlx5_0" {
		t.Skip("the table has what the C library does on the model")
	}
	ctx, err := verbs.Open(device)
	require.NoError(t, err)
	defer ctx.Close()
	require.NoError(t, abilities.Compare(ctx, "mlx5 on a model, by libmlx5"))
}
