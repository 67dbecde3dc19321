//go:build amd64 || arm64

package ibverbs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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

// An index or a number that completions of a closed SRQ still have goes to nobody before
// they are taken out: the library would free a receive of another one.
func TestNothingGetsTheNumberOfAnSRQWhoseCompletionsAreThere(t *testing.T) {
	ctx, _ := openXRC(t)
	d := ctx[0].Driver().(*device)
	p, err := d.allocPD()
	require.NoError(t, err)
	var completions [2]verbs.CQDriver
	for i := range completions {
		completions[i], err = d.CreateCQ(&verbs.CQAttr{CQE: 4}, nil)
		require.NoError(t, err)
	}
	domain, err := d.OpenXRCDomain(nil)
	require.NoError(t, err)
	attr := verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}
	closed, err := domain.CreateSRQ(p, completions[0], &attr)
	require.NoError(t, err)
	made := make(chan error)
	creations := []func() error{
		func() error { _, err := p.CreateSRQ(&verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}); return err },
		func() error {
			_, err := domain.CreateSRQ(p, completions[1], &verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
			return err
		},
		func() error { _, err := p.tries(verbs.QPTypeRC, completions[1], 0); return err },
	}
	require.NoError(t, completions[0].(*cq).leave(closed.(*srq), func() error {
		for _, create := range creations {
			go func() { made <- create() }()
		}
		select {
		case <-made:
			t.Error("something was made while the completions were there")
			creations = creations[1:]
		case <-time.After(50 * time.Millisecond):
		}
		return nil
	}))
	for range creations {
		require.NoError(t, <-made)
	}
}
