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

func (u unchanging) Reregister([]byte, PDDriver, Access, MRChange) error { return u.answer }

func TestErrorsOfReregisterTellWhetherTheMRIsUsable(t *testing.T) {
	defer SetPinLimit(SetPinLimit(PinnedBytes() + 1))
	pd := &PD{ctx: &Context{attr: DeviceAttr{Caps: CapReregister}}}
	region := func(answer error) *MR {
		return &MR{pd: pd, drv: unchanging{answer: answer}, bytes: make([]byte, 8), length: 8}
	}
	before := PinnedBytes()
	invalid := fmt.Errorf("REREG_MR: %w: %w", ErrInvalid, syscall.EINVAL)
	for _, c := range []struct {
		name   string
		mr     *MR
		update MRUpdate
		usable bool
	}{
		{"nothing to change", region(nil), MRUpdate{}, true},
		{"unknown right", region(nil), MRUpdate{Access: 1 << 30}, true},
		{"more than may be pinned", region(nil), MRUpdate{Memory: make([]byte, 64)}, true},
		{"a change that the device has not", region(ErrUnsupported), MRUpdate{Access: AccessLocalWrite}, true},
		{"a DMA buffer", &MR{pd: pd, drv: unchanging{}}, MRUpdate{Access: AccessLocalWrite}, true},
		{"the device says no", region(invalid), MRUpdate{Access: AccessLocalWrite}, false},
		{"the device has no memory", region(syscall.ENOMEM), MRUpdate{Access: AccessLocalWrite}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.mr.Reregister(c.update)
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
