//go:build amd64 || arm64

package ibverbs_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
)

// removalVariable names a file. A device of the model is removed when there is that file, by the
// test of the model that runs this one (TestRemovalOverTheCLibrary).
const removalVariable = "RAMJET_TEST_REMOVAL"

// removable returns a device that may be removed, and what removes it.
func removable(t *testing.T) (name string, remove func() error) {
	t.Helper()
	if file := os.Getenv(removalVariable); file != "" {
		return "mlx5_0", func() error { return os.WriteFile(file, nil, 0o600) }
	}
	if os.Getenv("RAMJET_DEVICES") != "rxe0" {
		t.Skip("it takes a device that may be removed: of rxe, which the virtual machine can make, or of a model")
	}
	name = "rxe9"
	out, err := exec.Command("rdma", "link", "add", name, "type", "rxe", "netdev", "dummy1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return name, exec.Command("rdma", "link", "delete", name).Run
}

// The kernel takes a device away after some of its events were taken: the library waits
// for events that were not acknowledged.
func TestRemovalOfTheDeviceEndsEverything(t *testing.T) {
	name, remove := removable(t)
	var ctx *verbs.Context
	require.Eventually(t, func() (opened bool) {
		var err error
		ctx, err = verbs.Open(name)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, ibverbs.ProviderName, ctx.Attr().Provider)
	ch, err := ctx.CreateCompChannel()
	require.NoError(t, err)
	l := loopOn(t, ctx, ch)
	wrs := l.writes(1)
	for range 5 {
		require.NoError(t, l.cq.Arm(false))
		_, err := l.qp.PostSend(wrs)
		require.NoError(t, err)
		require.NoError(t, ch.Wait(time.Now().Add(20*time.Second)))
		l.drain(t, 1)
	}
	requireGone := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.ErrorContains(t, err, "removed")
	}
	copies := memoryOf(t, ctx)
	waited := make(chan error, 1)
	go func() { waited <- ch.Wait(time.Time{}) }()
	removed := make(chan error, 1)
	go func() { removed <- remove() }()
	ev, err := ctx.NextEvent() // ends with the removal
	require.NoError(t, err)
	require.Equal(t, verbs.EventDeviceFatal, ev.Type)
	requireGone(<-waited) // ends with the removal
	_, err = l.qp.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, l.cq.Arm(false), verbs.ErrClosed)
	if ctx.Attr().Caps.Has(verbs.CapClock) {
		_, err = ctx.Clock()
		requireGone(err)
	}
	if copies != nil {
		requireGone(copies())
	}
	require.NoError(t, l.qp.Close())
	require.NoError(t, ctx.Close())
	require.NoError(t, <-removed) // the kernel has waited for us
	_, err = verbs.Open(name)
	require.Error(t, err)
	if os.Getenv(removalVariable) == "" { // the model lists it for ever
		require.ErrorIs(t, err, verbs.ErrNoDevice)
	}
}

// memoryOf returns what copies to memory of the device and back, nil if it has none.
func memoryOf(t *testing.T, ctx *verbs.Context) (copies func() error) {
	t.Helper()
	if !ctx.Attr().Caps.Has(verbs.CapDeviceMemory) {
		return nil
	}
	dm, err := ctx.AllocDM(64)
	require.NoError(t, err)
	copies = func() error {
		want, got := []byte("sixteen bytes..."), make([]byte, 16)
		_, err := dm.WriteAt(want, 0)
		if err == nil {
			if _, err = dm.ReadAt(got, 0); err == nil {
				require.Equal(t, want, got)
			}
		}
		return err
	}
	require.NoError(t, copies())
	return copies
}
