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

// The kernel takes a device away after some of its events were taken: the library waits
// for events that were not acknowledged.
func TestRemovalOfTheDeviceEndsEverything(t *testing.T) {
	if os.Getenv("RAMJET_DEVICES") != "rxe0" {
		t.Skip("it takes a device of rxe that may be removed, which the virtual machine can make")
	}
	const name = "rxe9"
	out, err := exec.Command("rdma", "link", "add", name, "type", "rxe", "netdev", "dummy1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	var ctx *verbs.Context
	require.Eventually(t, func() bool {
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
	waited := make(chan error, 1)
	go func() { waited <- ch.Wait(time.Time{}) }()
	removed := make(chan error, 1)
	go func() { removed <- exec.Command("rdma", "link", "delete", name).Run() }()
	ev, err := ctx.NextEvent() // ends with the removal
	require.NoError(t, err)
	require.Equal(t, verbs.EventDeviceFatal, ev.Type)
	err = <-waited // ends with the removal
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorContains(t, err, "removed")
	_, err = l.qp.PostSend(wrs)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, l.cq.Arm(false), verbs.ErrClosed)
	require.NoError(t, l.qp.Close())
	require.NoError(t, ctx.Close())
	require.NoError(t, <-removed) // the kernel has waited for us
	_, err = verbs.Open(name)
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}
