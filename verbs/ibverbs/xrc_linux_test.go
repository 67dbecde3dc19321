//go:build amd64 || arm64

package ibverbs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// openXRC opens the device, twice, with the domain of one file.
func openXRC(t *testing.T) (ctx [2]*verbs.Context, domain [2]*verbs.XRCDomain) {
	t.Helper()
	device := os.Getenv("RAMJET_DEVICES")
	if device == "" {
		t.Skip("RAMJET_DEVICES names no device")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer file.Close()
	for i := range ctx {
		ctx[i], err = verbs.Open(device)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ctx[i].Close()) })
		if !ctx[i].Attr().Caps.Has(verbs.CapXRC) {
			t.Skip("the device has no XRC domains")
		}
		domain[i], err = ctx[i].OpenXRCDomain(file)
		require.NoError(t, err)
	}
	return ctx, domain
}

// libmlx5 kills the process where a QP that was opened is taken to RESET, or
// destroyed as others are.
func TestATargetThatAnotherHasMadeIsNotTakenToReset(t *testing.T) {
	_, domain := openXRC(t)
	made, err := domain[0].CreateQP()
	require.NoError(t, err)
	opened, err := domain[1].OpenQP(made.Num())
	require.NoError(t, err)
	init := verbs.QPAttr{State: verbs.QPStateInit, Port: 1}
	require.NoError(t, opened.Modify(init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	toReset := verbs.QPAttr{State: verbs.QPStateReset}
	require.ErrorIs(t, opened.Modify(toReset, verbs.QPAttrState), verbs.ErrUnsupported)
	attr, err := made.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.QPStateInit, attr.State)
	require.NoError(t, made.Modify(toReset, verbs.QPAttrState))
	require.NoError(t, made.Close())
	attr, err = opened.Query()
	require.NoError(t, err, "it stays as long as one has it open")
	require.Equal(t, verbs.QPStateReset, attr.State)
	_, err = opened.PostSend(make([]verbs.SendWR, 1))
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.NoError(t, opened.Close())
	require.NoError(t, opened.Close(), "once more")
	_, err = opened.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = domain[1].OpenQP(made.Num())
	require.ErrorIs(t, err, verbs.ErrInvalid, "it is gone")
}

func TestADeviceIsClosedWithItsDomains(t *testing.T) {
	ctx, domain := openXRC(t)
	made, err := domain[0].CreateQP()
	require.NoError(t, err)
	opened, err := domain[1].OpenQP(made.Num())
	require.NoError(t, err)
	pd, err := ctx[0].AllocPD()
	require.NoError(t, err)
	cq, err := ctx[0].CreateCQ(verbs.CQAttr{CQE: 4}, nil)
	require.NoError(t, err)
	srq, err := domain[0].CreateSRQ(pd, cq, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	require.NoError(t, err)
	_, err = pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCInitiator, SendCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	require.NoError(t, err)
	require.NoError(t, ctx[0].Close())
	_, err = srq.PostRecv(make([]verbs.RecvWR, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = made.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = domain[0].CreateQP()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.NoError(t, domain[0].Close())
	_, err = opened.Query()
	require.NoError(t, err)
	require.NoError(t, ctx[1].Close())
}
