package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequestsNameOnlyWhatIsOfTheirDevice(t *testing.T) {
	device := func() *PD { return &PD{ctx: &Context{attr: DeviceAttr{Caps: CapUD | CapMemWindow}}} }
	here, there := device(), device()
	rc, ud := &QP{pd: here}, &QP{pd: here, attr: QPInitAttr{Type: QPTypeUD}}
	to := func(pd *PD) *SendWR { return &SendWR{Opcode: OpSend, Datagram: &Datagram{AH: &AH{pd: pd}}} }
	bind := func(window, memory *PD) *SendWR {
		return &SendWR{Opcode: OpBindMW, Bind: &Bind{MW: &MW{pd: window}, MR: &MR{pd: memory}, Length: 1}}
	}
	require.NoError(t, ud.checkSend(to(here)))
	require.NoError(t, rc.checkSend(bind(here, here)))
	require.NoError(t, rc.checkSend(bind(here, &PD{ctx: here.ctx})), "of another PD: the device looks")
	require.NoError(t, rc.checkSend(&SendWR{Opcode: OpBindMW, Bind: &Bind{MW: &MW{pd: here}}}))
	require.ErrorIs(t, ud.checkSend(to(there)), ErrInvalid)
	require.ErrorIs(t, rc.checkSend(bind(there, here)), ErrInvalid)
	require.ErrorIs(t, rc.checkSend(bind(here, there)), ErrInvalid)
	require.ErrorIs(t, rc.checkSend(&SendWR{Opcode: OpBindMW, Bind: &Bind{MW: &MW{pd: there}}}), ErrInvalid)
}

func TestSendFlagsThatNobodyKnowsAreRefused(t *testing.T) {
	qp := &QP{pd: &PD{ctx: new(Context)}}
	for bit := range 8 {
		err := qp.checkSend(&SendWR{Opcode: OpSend, Flags: 1 << bit})
		if bit < 4 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrInvalid)
		}
	}
}
