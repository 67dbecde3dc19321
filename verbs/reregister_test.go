package verbs

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// unchanging is a region whose device refuses each change.
type unchanging struct {
	MRDriver
	answer error
}

func (u unchanging) Reregister([]byte, uint64, PDDriver, Access, MRChange) error { return u.answer }

func TestErrorsOfReregisterTellWhetherTheMRIsUsable(t *testing.T) {
	defer SetPinLimit(SetPinLimit(PinnedBytes() + 1))
	pd := &PD{ctx: reregistering()}
	region := func(answer error) *MR {
		return &MR{pd: pd, drv: unchanging{answer: answer}, bytes: make([]byte, 8), pinned: 8}
	}
	before := PinnedBytes()
	invalid := fmt.Errorf("REREG_MR: %w: %w", ErrInvalid, syscall.EINVAL)
	for _, c := range []struct {
		name   string
		mr     *MR
		update MRUpdate
		mask   MRChange
		usable bool
	}{
		{"nothing to change", region(nil), MRUpdate{}, 0, true},
		{"unknown change", region(nil), MRUpdate{}, 1 << 3, true},
		{"no memory", region(nil), MRUpdate{}, MRChangeMemory, true},
		{"no PD", region(nil), MRUpdate{}, MRChangePD, true},
		{"unknown right", region(nil), MRUpdate{Access: 1 << 30}, MRChangeAccess, true},
		{"more than may be pinned", region(nil), MRUpdate{Memory: make([]byte, 64)}, MRChangeMemory, true},
		{"a change that the device has not", region(ErrUnsupported), MRUpdate{Access: AccessLocalWrite}, MRChangeAccess, true},
		{"a DMA buffer", &MR{pd: pd, drv: unchanging{}}, MRUpdate{Access: AccessLocalWrite}, MRChangeAccess, true},
		{"the device says no", region(invalid), MRUpdate{Access: AccessLocalWrite}, MRChangeAccess, false},
		{"the device has no memory", region(syscall.ENOMEM), MRUpdate{Access: AccessLocalWrite}, MRChangeAccess, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.mr.Reregister(c.update, c.mask)
			require.Error(t, err)
			if c.usable {
				require.NotContains(t, err.Error(), "unusable")
				return
			}
			require.ErrorContains(t, err, "unusable")
			for _, asItWas := range []error{ErrInvalid, ErrPinLimit, ErrUnsupported} {
				require.NotErrorIs(t, err, asItWas)
			}
		})
	}
	require.Equal(t, before, PinnedBytes())
}

func reregistering() *Context {
	return &Context{drv: closable{}, attr: DeviceAttr{Caps: CapReregister}, mrs: make(map[*MR]struct{})}
}

// closable is a device that can be closed.
type closable struct{ ContextDriver }

func (closable) Close() error { return nil }

// recording is a region whose device does what it is asked, and says what.
type recording struct {
	MRDriver
	mask      MRChange
	access    Access
	meanwhile func() error // its answer, nil for none
}

func (r *recording) Reregister(_ []byte, _ uint64, _ PDDriver, access Access, mask MRChange) error {
	r.mask, r.access = mask, access
	if r.meanwhile != nil {
		return r.meanwhile()
	}
	return nil
}
func (r *recording) Bytes() []byte     { return make([]byte, 8) }
func (r *recording) Addr() uint64      { return 0 }
func (r *recording) LKey() uint32      { return 1 }
func (r *recording) RKey() uint32      { return 1 }
func (r *recording) Deregister() error { return ErrClosed }

func TestRightsAreTakenUntilNoneIsLeft(t *testing.T) {
	drv := &recording{}
	mr := &MR{
		pd: &PD{ctx: reregistering()}, drv: drv, bytes: make([]byte, 8), pinned: 8,
		access: AccessLocalWrite | AccessRemoteWrite,
	}
	require.NoError(t, mr.Reregister(MRUpdate{Access: 0}, MRChangeAccess))
	require.Equal(t, MRChangeAccess, drv.mask)
	require.Zero(t, drv.access)
	require.Zero(t, mr.Access())
}

// The device makes the change, and is closed before Reregister has counted it.
func TestADeviceMayBeClosedWhileAnMRGrows(t *testing.T) {
	for _, was := range []int64{0, 8, 64, 100} {
		before := PinnedBytes()
		ctx := reregistering()
		mr := &MR{pd: &PD{ctx: ctx}, drv: &recording{meanwhile: ctx.Close}, bytes: make([]byte, 8), pinned: was}
		require.True(t, ctx.keep(mr))
		require.NoError(t, pin(was))
		require.NoError(t, mr.Reregister(MRUpdate{Memory: make([]byte, 64)}, MRChangeMemory))
		require.NoError(t, mr.Close())
		require.Equal(t, before, PinnedBytes(), "of %d bytes 64", was)
	}
}

func TestWhatAnMRLosesIsFreeWhenItHasLostIt(t *testing.T) {
	before := PinnedBytes()
	defer SetPinLimit(SetPinLimit(before + 64))
	require.NoError(t, pin(64))
	busy := func() error {
		require.ErrorIs(t, pin(56), ErrPinLimit)
		return ErrBusy
	}
	drv := &recording{meanwhile: busy}
	mr := &MR{pd: &PD{ctx: reregistering()}, drv: drv, bytes: make([]byte, 64), pinned: 64}
	require.ErrorIs(t, mr.Reregister(MRUpdate{Memory: make([]byte, 8)}, MRChangeMemory), ErrBusy)
	require.Equal(t, before+64, PinnedBytes())
	drv.meanwhile = nil
	require.NoError(t, mr.Reregister(MRUpdate{Memory: make([]byte, 8)}, MRChangeMemory))
	require.Equal(t, before+8, PinnedBytes())
	unpin(8)
}
