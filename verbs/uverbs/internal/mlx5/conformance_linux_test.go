//go:build amd64 || arm64

package mlx5_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/race"
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

// TestConformance runs the conformance test of devices on the model of a ConnectX. What the race detector is
// there for, the locks of the driver, does not depend on the link or on the formats: it looks at two
// configurations, in which there is all that is shared.
func TestConformance(t *testing.T) {
	blueFlame := []string{"RAMJET_EXPERIMENTAL=mlx5-blueflame"}
	for name, config := range map[string]modeltest.Config{
		"InfiniBand": {},
		"RoCE":       {Device: model.Config{Link: fabric.Ethernet}},
		// The driver is told to use BlueFlame, and does without.
		"CQEs of version 0, no atomics, no BlueFlame": {Device: model.Config{CQEVersion0: true, NoAtomics: true, NoBlueFlame: true},
			Env: blueFlame},
		"hostile": {Device: model.Config{Link: fabric.Ethernet}, Hostile: 1},
		// How commands are made is nothing to the data path.
		"write, hostile, BlueFlame": {Device: model.Config{Link: fabric.Ethernet}, WriteOnly: true, Hostile: 1, BlueFlame: true},
	} {
		if config.BlueFlame {
			config.Env = blueFlame
		} else if config.Env == nil {
			config.Env = []string{"RAMJET_EXPERIMENTAL=mlx5"}
		}
		if race.Enabled && name != "RoCE" && !config.BlueFlame {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if modeltest.On(t, config) {
				conformance.Run(t, "mlx5_0", nil)
			}
		})
	}
}

func TestCloseMayComeAtAnyMoment(t *testing.T) {
	for name, link := range map[string]fabric.Link{"InfiniBand": fabric.InfiniBand, "RoCE": fabric.Ethernet} {
		if race.Enabled && link != fabric.Ethernet {
			continue // who closes what, and when, is the same on each
		}
		t.Run(name, func(t *testing.T) {
			if modeltest.On(t, modeltest.Config{Device: model.Config{Link: link}, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"}}) {
				conformance.CloseAtAnyMoment(t, "mlx5_0")
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

// The clock of a device that was removed is an error, whether it was read before or not.
func TestADeviceThatIsRemovedShowsNoClock(t *testing.T) {
	config := modeltest.Config{
		Env: []string{"RAMJET_EXPERIMENTAL=mlx5"},
		While: func(ctx context.Context, devices []fabric.Device) {
			for ctx.Err() == nil && devices[0].Fabric().Members() == 0 {
				time.Sleep(time.Millisecond)
			}
			devices[0].Remove()
		},
	}
	if !modeltest.On(t, config) {
		return
	}
	read, unread := open(t), open(t)
	last, err := read.Clock()
	require.NoError(t, err)
	joinGroup(t, read) // for which the model waits
	for err == nil {
		now := uint64(0)
		if now, err = read.Clock(); err == nil { // ends with the removal
			require.GreaterOrEqual(t, now, last)
			last = now
		}
	}
	for _, ctx := range []*verbs.Context{read, unread} {
		_, err := ctx.Clock()
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.ErrorContains(t, err, "removed")
	}
}

// joinGroup has a QP of the device in a multicast group.
func joinGroup(t *testing.T, ctx *verbs.Context) {
	t.Helper()
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 1}, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
	require.NoError(t, err)
	require.NoError(t, qp.AttachMulticast(verbs.GID{0: 0xff, 1: 0x12, 15: 1}, 0xc001))
}

// TestTheModelIsAsInTheTable compares what docs/verbs.md says.
func TestTheModelIsAsInTheTable(t *testing.T) {
	config := modeltest.Config{Device: model.Config{Link: fabric.Ethernet}, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"}}
	if modeltest.On(t, config) {
		require.NoError(t, abilities.Compare(open(t), "mlx5 on a model"))
	}
}

// The kernel looks at a descriptor before it takes a DMA buffer. None can be had here.
func TestADescriptorThatIsNoDMABufferIsRefused(t *testing.T) {
	config := modeltest.Config{Device: model.Config{DMABuf: true}, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"}}
	if !modeltest.On(t, config) {
		return
	}
	ctx := open(t)
	require.True(t, ctx.Attr().Caps.Has(verbs.CapDMABuf))
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	register := func(fd int, offset uint64, access verbs.Access) error {
		_, err := pd.RegisterDMABuf(fd, offset, 4096, 0, access)
		return err
	}
	require.ErrorIs(t, register(int(file.Fd()), 0, verbs.AccessLocalWrite), verbs.ErrInvalid)
	require.ErrorIs(t, register(-1, 0, verbs.AccessLocalWrite), unix.EBADF)
	require.ErrorIs(t, register(-1, 1, verbs.AccessLocalWrite), verbs.ErrInvalid, "the address is at another place in its page")
	require.ErrorIs(t, register(-1, 0, verbs.AccessLocalWrite|verbs.AccessMWBind), verbs.ErrInvalid, "buffers have no windows")
	require.NoError(t, pd.Close(), "nothing was registered")
}

// Memory of a device that is removed is not read as the zeros that the kernel puts in its place.
func TestMemoryOfADeviceThatIsRemovedCannotBeCopied(t *testing.T) {
	const variable = "RAMJET_TEST_WRITTEN"
	written := filepath.Join(t.TempDir(), "written")
	if !modeltest.On(t, modeltest.Config{
		Env: []string{"RAMJET_EXPERIMENTAL=mlx5", variable + "=" + written},
		While: func(ctx context.Context, devices []fabric.Device) {
			for ctx.Err() == nil {
				if _, err := os.Stat(written); err == nil {
					devices[0].Remove()
					return
				}
				time.Sleep(time.Millisecond)
			}
		},
	}) {
		return
	}
	ctx := open(t)
	dm, err := ctx.AllocDM(4096)
	require.NoError(t, err)
	want := bytes.Repeat([]byte{0xa5}, 4096)
	_, err = dm.WriteAt(want, 0)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(os.Getenv(variable), nil, 0o600))
	for err == nil { // ends with the removal
		got := make([]byte, len(want))
		if _, err = dm.ReadAt(got, 0); err == nil {
			require.True(t, bytes.Equal(want, got), "%x", got[:16])
		}
	}
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorContains(t, err, "removed")
	_, err = dm.WriteAt(want, 0)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorContains(t, err, "removed")
	ev, err := ctx.NextEvent()
	require.NoError(t, err)
	require.Equal(t, verbs.EventDeviceFatal, ev.Type)
	require.NoError(t, dm.Close())
}
