package uverbs_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

const needsDevices = "needs RDMA devices: go build -o /tmp/guest ./verbs/guest && go test -exec /tmp/guest ./verbs/uverbs"

// requireDevice skips the test where RAMJET_DEVICES names no devices, and
// demands the device where it does.
func requireDevice(t testing.TB, name string) {
	t.Helper()
	devices := os.Getenv("RAMJET_DEVICES")
	if devices == "" {
		t.Skip(needsDevices)
	}
	if !slices.Contains(strings.Split(devices, ","), name) {
		t.Skipf("RAMJET_DEVICES=%s says that %s is not here", devices, name)
	}
}

func open(t testing.TB, name string) *verbs.Context {
	t.Helper()
	requireDevice(t, name)
	ctx, err := verbs.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	return ctx
}

func TestDevicesAreListed(t *testing.T) {
	requireDevice(t, "rxe0")
	list, err := verbs.Devices()
	require.NoError(t, err)
	i := slices.IndexFunc(list, func(d verbs.DeviceInfo) bool { return d.Name == "rxe0" })
	require.GreaterOrEqual(t, i, 0, "%+v", list)
	require.Equal(t, uverbs.ProviderName, list[i].Provider)
	require.Equal(t, "rxe", list[i].Driver)
	require.True(t, uverbs.Drives("rxe") && uverbs.Drives("siw"))
	require.False(t, uverbs.Drives("mlx5") || uverbs.Drives(""))
	require.Equal(t, verbs.TransportRoCE, list[i].Transport)
	require.NotZero(t, list[i].NodeGUID)
	ctx := open(t, "rxe0")
	t.Logf("%+v", ctx.Attr())
	port, err := ctx.QueryPort(1)
	require.NoError(t, err)
	t.Logf("%+v", port)
	require.Equal(t, verbs.PortActive, port.State)
	gids, err := ctx.QueryGIDs(1)
	require.NoError(t, err)
	t.Logf("%+v", gids)
	require.Equal(t, "10.0.0.1", strings.TrimPrefix(gids[1].GID.String(), "::ffff:"))
}
