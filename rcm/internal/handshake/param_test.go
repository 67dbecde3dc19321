package handshake

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// provider is that of a device, and the device, and its XRC domain, and a target of that.
type provider struct {
	verbs.ContextDriver
	verbs.QPDriver
	verbs.XRCDomainDriver
}

func (provider) Name() string { return "test" }
func (provider) Devices() ([]verbs.DeviceInfo, error) {
	return []verbs.DeviceInfo{{Name: "test0"}}, nil
}
func (p provider) Open(string) (verbs.ContextDriver, error) { return p, nil }
func (provider) Num() uint32                                { return 1 }
func (p provider) CreateQP() (verbs.QPDriver, error)        { return p, nil }
func (provider) Close() error                               { return nil }

func (provider) QueryDevice() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{DeviceInfo: verbs.DeviceInfo{Name: "test0"}, Caps: verbs.CapXRC}, nil
}

func (p provider) OpenXRCDomain(file *os.File) (verbs.XRCDomainDriver, error) { return p, nil }

func init() { verbs.Register(provider{}) }

// A target has no PD, by which the device of other QPs is found.
func TestATargetOfXRCIsNotConnected(t *testing.T) {
	ctx, err := verbs.Open("test0")
	require.NoError(t, err)
	domain, err := ctx.OpenXRCDomain(nil)
	require.NoError(t, err)
	target, err := domain.CreateQP()
	require.NoError(t, err)
	_, err = Complete(rcm.ConnParam{}, target, 56)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.NoError(t, ctx.Close())
}
