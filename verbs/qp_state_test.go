package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestModifyWithoutStateStaysInTheState(t *testing.T) {
	for _, c := range []struct {
		state QPState
		mask  QPAttrMask
		ok    bool
	}{
		{QPStateInit, QPAttrAccess, true},
		{QPStateRTR, QPAttrAccess, false},
		{QPStateRTS, QPAttrMinRNRTimer, true},
		{QPStateRTS, QPAttrTimeout, false},
		{QPStateSQD, QPAttrTimeout, true},
		{QPStateErr, QPAttrAccess, false},
	} {
		err := checkTransition(QPTypeRC, c.state, &QPAttr{State: QPStateErr}, c.mask)
		require.Equal(t, c.ok, err == nil, "%v, mask %#x: %v", c.state, c.mask, err)
	}
}

func TestCurStateMustBeTheState(t *testing.T) {
	attr := QPAttr{State: QPStateRTS, CurState: QPStateSQD}
	require.NoError(t, checkTransition(QPTypeRC, QPStateSQD, &attr, QPAttrState|QPAttrCurState))
	require.EqualError(t, checkTransition(QPTypeRC, QPStateRTS, &attr, QPAttrState|QPAttrCurState),
		"verbs: invalid argument: QP is in RTS, not in SQD")
}

func TestTransitionErrorsSayWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		from, to QPState
		mask     QPAttrMask
		want     string
	}{
		{QPStateReset, QPStateRTS, QPAttrState, "no transition from RESET to RTS"},
		{QPStateReset, QPStateErr, QPAttrState, "no transition from RESET to ERR"},
		{QPStateReset, QPStateInit, QPAttrState | QPAttrPort, "RESET to INIT lacks attributes 0x18"},
		{QPStateRTS, QPStateErr, QPAttrState | QPAttrQKey, "RTS to ERR does not allow attributes 0x40"},
	} {
		err := checkTransition(QPTypeRC, c.from, &QPAttr{State: c.to}, c.mask)
		require.EqualError(t, err, "verbs: invalid argument: "+c.want)
	}
}

func TestAttributeValuesHaveRanges(t *testing.T) {
	dev := DeviceAttr{PhysPorts: 2, MaxQPInitRdAtomic: 16, MaxQPRdAtomic: 128}
	for _, c := range []struct {
		mask      QPAttrMask
		good, bad QPAttr
	}{
		{QPAttrPort, QPAttr{Port: 2}, QPAttr{Port: 3}},
		{QPAttrPort, QPAttr{Port: 1}, QPAttr{Port: 0}},
		{QPAttrAccess, QPAttr{Access: 0x3ff}, QPAttr{Access: 0x400}},
		{QPAttrPathMTU, QPAttr{PathMTU: 5}, QPAttr{PathMTU: 6}},
		{QPAttrPathMTU, QPAttr{PathMTU: 1}, QPAttr{PathMTU: 0}},
		{QPAttrRetryCount, QPAttr{RetryCount: 7}, QPAttr{RetryCount: 8}},
		{QPAttrRNRRetry, QPAttr{RNRRetry: 7}, QPAttr{RNRRetry: 8}},
		{QPAttrTimeout, QPAttr{Timeout: 31}, QPAttr{Timeout: 32}},
		{QPAttrMinRNRTimer, QPAttr{MinRNRTimer: 31}, QPAttr{MinRNRTimer: 32}},
		{QPAttrDestQPN, QPAttr{DestQPN: 0xffffff}, QPAttr{DestQPN: 0x1000000}},
		{QPAttrRQPSN, QPAttr{RQPSN: 0xffffff}, QPAttr{RQPSN: 0x1000000}},
		{QPAttrSQPSN, QPAttr{SQPSN: 0xffffff}, QPAttr{SQPSN: 0x1000000}},
		{QPAttrMaxRdAtomic, QPAttr{MaxRdAtomic: 16}, QPAttr{MaxRdAtomic: 17}},
		{QPAttrMaxDestRdAtomic, QPAttr{MaxDestRdAtomic: 128}, QPAttr{MaxDestRdAtomic: 129}},
		{QPAttrAV, QPAttr{AV: AddressVector{FlowLabel: 0xfffff}}, QPAttr{AV: AddressVector{FlowLabel: 0x100000}}},
		{QPAttrAV, QPAttr{AV: AddressVector{SL: 15}}, QPAttr{AV: AddressVector{SL: 16}}},
	} {
		name := fmt.Sprintf("mask %#x", uint32(c.mask))
		require.NoError(t, checkAttrValues(&c.good, c.mask, &dev), name)
		require.ErrorIs(t, checkAttrValues(&c.bad, c.mask, &dev), ErrInvalid, name)
		require.NoError(t, checkAttrValues(&c.bad, 0, &dev), "%s: what the mask leaves out does not count", name)
	}
}
