package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// kernelRule is an entry of the kernel's qp_state_table
// (drivers/infiniband/core/verbs.c), in literal numbers.
type kernelRule struct{ required, optional uint32 }

// kernelRules is that table for one service, without the ways to RESET and
// ERR, which need nothing and allow nothing.
type kernelRules map[[2]int]kernelRule

const (
	kReset = iota
	kInit
	kRTR
	kRTS
	kSQD
	kSQE
	kErr
)

var kernelTable = map[QPType]kernelRules{
	2: { // IB_QPT_RC
		{kReset, kInit}: {0x000038, 0},
		{kInit, kInit}:  {0, 0x000038},
		{kInit, kRTR}:   {0x129180, 0x004018},
		{kRTR, kRTS}:    {0x012e00, 0x04c00a},
		{kRTS, kRTS}:    {0, 0x04c00a},
		{kRTS, kSQD}:    {0, 0x000004},
		{kSQD, kRTS}:    {0, 0x04c00a},
		{kSQD, kSQD}:    {0, 0x06eeb8},
		{kSQE, kRTS}:    {0, 0},
	},
	3: { // IB_QPT_UC
		{kReset, kInit}: {0x000038, 0},
		{kInit, kInit}:  {0, 0x000038},
		{kInit, kRTR}:   {0x101180, 0x004018},
		{kRTR, kRTS}:    {0x010000, 0x04400a},
		{kRTS, kRTS}:    {0, 0x04400a},
		{kRTS, kSQD}:    {0, 0x000004},
		{kSQD, kRTS}:    {0, 0x04400a},
		{kSQD, kSQD}:    {0, 0x044098},
		{kSQE, kRTS}:    {0, 0x00000a},
	},
	4: { // IB_QPT_UD
		{kReset, kInit}: {0x000070, 0},
		{kInit, kInit}:  {0, 0x000070},
		{kInit, kRTR}:   {0, 0x000050},
		{kRTR, kRTS}:    {0x010000, 0x000042},
		{kRTS, kRTS}:    {0, 0x000042},
		{kRTS, kSQD}:    {0, 0x000004},
		{kSQD, kRTS}:    {0, 0x000042},
		{kSQD, kSQD}:    {0, 0x000050},
		{kSQE, kRTS}:    {0, 0x000042},
	},
}

// kernelAllows is the kernel's ib_modify_qp_is_ok.
func kernelAllows(typ QPType, from, to int, mask uint32) bool {
	const curState, state = 0x2, 0x1
	if mask&curState != 0 && from != kRTR && from != kRTS && from != kSQD && from != kSQE {
		return false
	}
	rule, valid := kernelTable[typ][[2]int{from, to}]
	if to == kReset || to == kErr && from != kReset {
		rule, valid = kernelRule{}, true
	}
	return valid && mask&rule.required == rule.required && mask&^(rule.required|rule.optional|state) == 0
}

// TestTransitionsAreThoseOfTheKernel tries, for every service and pair of
// states, the required attributes alone, with all optional ones, without each
// one, and with each of the 32 bits on top.
func TestTransitionsAreThoseOfTheKernel(t *testing.T) {
	allowed := 0
	for typ := range kernelTable {
		for from := kReset; from <= kErr; from++ {
			for to := kReset; to <= kErr+1; to++ {
				rule := kernelTable[typ][[2]int{from, to}]
				masks := []uint32{0, rule.required, rule.required | rule.optional}
				for bit := range 32 {
					masks = append(masks, 1<<bit, rule.required|1<<bit, rule.required&^(1<<bit), (rule.required|rule.optional)&^(1<<bit))
				}
				for _, mask := range masks {
					mask |= 1 // the state itself
					attr := QPAttr{State: QPState(to), CurState: QPState(from)}
					err := checkTransition(typ, QPState(from), &attr, QPAttrMask(mask))
					want := kernelAllows(typ, from, to, mask)
					require.Equal(t, want, err == nil, "type %d, %v to %v, mask %#x: %v", typ, QPState(from), QPState(to), mask, err)
					if err != nil {
						require.ErrorIs(t, err, ErrInvalid)
					} else {
						allowed++
					}
				}
			}
		}
	}
	require.Greater(t, allowed, 1000, "the table was not looked at")
}

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
