//go:build amd64 || arm64

package ibverbs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/multicast"
)

// newDatagramQP makes a QP of a device with multicast, or skips the test. The context ends with the
// test.
func newDatagramQP(t *testing.T) (*verbs.Context, *verbs.CQ, *verbs.QP) {
	device := os.Getenv("RAMJET_DEVICES")
	if device == "" {
		t.Skip("RAMJET_DEVICES names no device")
	}
	ctx, err := verbs.Open(device)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ctx.Close() })
	if !ctx.Attr().Caps.Has(verbs.CapMulticast) {
		t.Skip("the device has no multicast")
	}
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 2}, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	return ctx, cq, qp
}

func TestAQPThatIsBusyStaysInItsGroups(t *testing.T) {
	_, _, made := newDatagramQP(t)
	const lid = 0xc077
	ours, hidden := verbs.GID{0: 0xff, 1: 0x0e, 15: 0x77}, multicast.Group{GID: verbs.GID{0: 0xff, 1: 0x0e, 15: 0x78}, LID: lid}
	require.NoError(t, made.AttachMulticast(ours, lid))
	q := made.Driver().(*qp)
	require.NoError(t, q.attach(hidden)) // which is not known to Destroy
	require.ErrorIs(t, made.Close(), verbs.ErrBusy)
	require.NoError(t, made.DetachMulticast(ours, lid), "it is a member still")
	require.NoError(t, q.detach(hidden))
	require.NoError(t, made.Close())
}

// The kernel takes the rest when the context goes. The library has freed the memory of all then.
func TestADeviceIsClosedWithAQPThatIsBusy(t *testing.T) {
	ctx, cq, made := newDatagramQP(t)
	require.NoError(t, made.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
	q := made.Driver().(*qp)
	// which is not known to Destroy
	require.NoError(t, q.attach(multicast.Group{GID: verbs.GID{0: 0xff, 1: 0x0e, 15: 0x78}, LID: 0xc077}))
	_ = ctx.Close()
	_, err := made.PostRecv(make([]verbs.RecvWR, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
}
