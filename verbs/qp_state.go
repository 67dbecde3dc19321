package verbs

import "fmt"

// QPState is a state of the QP state machine (enum ib_qp_state).
type QPState uint8

// The states, numbered as the kernel numbers them.
const (
	QPStateReset QPState = 0
	QPStateInit  QPState = 1
	QPStateRTR   QPState = 2 // ready to receive
	QPStateRTS   QPState = 3 // ready to send
	QPStateSQD   QPState = 4 // send queue drained
	QPStateSQE   QPState = 5 // send queue error
	QPStateErr   QPState = 6
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String names the state as the specification does.
func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return fmt.Sprintf("STATE(%d)", uint8(s))
}

// AddressVector says how packets reach the peer (struct ib_uverbs_ah_attr).
type AddressVector struct {
	DGID         GID
	SGIDIndex    uint8
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TrafficClass uint8
	DLID         uint16 // InfiniBand only, as SrcPathBits
	SL           uint8  // 0 to 15; on RoCE 0 to 7, a priority of Ethernet
	SrcPathBits  uint8  // the low bits of the source's LID
	StaticRate   uint8  // a value of enum ibv_rate, not Gbit/s; 0: the port's
	IsGlobal     bool   // required on RoCE
	Port         uint8  // from 1
}

// QPAttr are the attributes of a QP that Modify sets and Query reports
// (struct ib_uverbs_modify_qp).
type QPAttr struct {
	State            QPState
	CurState         QPState
	EnSQDAsyncNotify bool
	Access           Access // remote operations that the QP lets in
	PKeyIndex        uint16
	Port             uint8
	QKey             uint32
	AV               AddressVector
	AltAV            AddressVector
	AltPKeyIndex     uint16
	AltPort          uint8
	AltTimeout       uint8
	PathMTU          MTU
	Timeout          uint8 // ACK timeout, 4.096 us * 2^Timeout, 0: none
	RetryCount       uint8 // 0 to 7
	RNRRetry         uint8 // 0 to 6, 7: without end
	RQPSN            uint32
	SQPSN            uint32
	MaxRdAtomic      uint8 // READs and atomics outstanding as initiator
	MaxDestRdAtomic  uint8 // the same as responder
	MinRNRTimer      uint8 // code of RNRTimer; 0 is 655 ms
	PathMigState     uint8
	SQDraining       bool  // Query only: in SQD, but not drained yet
	Cap              QPCap // Query only
	DestQPN          uint32
}

// QPAttrMask says which fields of a QPAttr count (enum ib_qp_attr_mask).
type QPAttrMask uint32

// The attribute mask bits, numbered as the kernel numbers them.
const (
	QPAttrState           QPAttrMask = 1 << 0
	QPAttrCurState        QPAttrMask = 1 << 1
	QPAttrEnSQDNotify     QPAttrMask = 1 << 2
	QPAttrAccess          QPAttrMask = 1 << 3
	QPAttrPKeyIndex       QPAttrMask = 1 << 4
	QPAttrPort            QPAttrMask = 1 << 5
	QPAttrQKey            QPAttrMask = 1 << 6
	QPAttrAV              QPAttrMask = 1 << 7
	QPAttrPathMTU         QPAttrMask = 1 << 8
	QPAttrTimeout         QPAttrMask = 1 << 9
	QPAttrRetryCount      QPAttrMask = 1 << 10
	QPAttrRNRRetry        QPAttrMask = 1 << 11
	QPAttrRQPSN           QPAttrMask = 1 << 12
	QPAttrMaxRdAtomic     QPAttrMask = 1 << 13
	QPAttrAltPath         QPAttrMask = 1 << 14
	QPAttrMinRNRTimer     QPAttrMask = 1 << 15
	QPAttrSQPSN           QPAttrMask = 1 << 16
	QPAttrMaxDestRdAtomic QPAttrMask = 1 << 17
	QPAttrPathMigState    QPAttrMask = 1 << 18
	QPAttrCap             QPAttrMask = 1 << 19
	QPAttrDestQPN         QPAttrMask = 1 << 20
)

type transition struct{ from, to QPState }

type attrRule struct{ required, optional QPAttrMask }

// rcTransitions and the four tables after it hold what the specification
// requires and allows beside QPAttrState, as the kernel's qp_state_table
// (drivers/infiniband/core/verbs.c) has it. To RESET every state may go with
// QPAttrState alone, and to ERR every state but RESET.
var rcTransitions = map[transition]attrRule{
	{QPStateReset, QPStateInit}: {required: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateInit}:  {optional: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateRTR}: {
		required: QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer,
		optional: QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex,
	},
	{QPStateRTR, QPStateRTS}: {
		required: QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRdAtomic,
		optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrMinRNRTimer | QPAttrPathMigState,
	},
	{QPStateRTS, QPStateRTS}: {
		optional: QPAttrCurState | QPAttrAccess | QPAttrAltPath | QPAttrPathMigState | QPAttrMinRNRTimer,
	},
	{QPStateRTS, QPStateSQD}: {optional: QPAttrEnSQDNotify},
	{QPStateSQD, QPStateRTS}: {
		optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrMinRNRTimer | QPAttrPathMigState,
	},
	// An RC QP never comes to SQE, but the kernel's table lets it leave.
	{QPStateSQE, QPStateRTS}: {},
	{QPStateSQD, QPStateSQD}: {
		optional: QPAttrPort | QPAttrAV | QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry | QPAttrMaxRdAtomic |
			QPAttrMaxDestRdAtomic | QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex | QPAttrMinRNRTimer | QPAttrPathMigState,
	},
}

var ucTransitions = map[transition]attrRule{
	{QPStateReset, QPStateInit}: {required: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateInit}:  {optional: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateRTR}: {
		required: QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN,
		optional: QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex,
	},
	{QPStateRTR, QPStateRTS}: {
		required: QPAttrSQPSN,
		optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrPathMigState,
	},
	{QPStateRTS, QPStateRTS}: {optional: QPAttrCurState | QPAttrAccess | QPAttrAltPath | QPAttrPathMigState},
	{QPStateRTS, QPStateSQD}: {optional: QPAttrEnSQDNotify},
	{QPStateSQD, QPStateRTS}: {optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrPathMigState},
	{QPStateSQD, QPStateSQD}: {optional: QPAttrAV | QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex | QPAttrPathMigState},
	{QPStateSQE, QPStateRTS}: {optional: QPAttrCurState | QPAttrAccess},
}

var udTransitions = map[transition]attrRule{
	{QPStateReset, QPStateInit}: {required: QPAttrPKeyIndex | QPAttrPort | QPAttrQKey},
	{QPStateInit, QPStateInit}:  {optional: QPAttrPKeyIndex | QPAttrPort | QPAttrQKey},
	{QPStateInit, QPStateRTR}:   {optional: QPAttrPKeyIndex | QPAttrQKey},
	{QPStateRTR, QPStateRTS}:    {required: QPAttrSQPSN, optional: QPAttrCurState | QPAttrQKey},
	{QPStateRTS, QPStateRTS}:    {optional: QPAttrCurState | QPAttrQKey},
	{QPStateRTS, QPStateSQD}:    {optional: QPAttrEnSQDNotify},
	{QPStateSQD, QPStateRTS}:    {optional: QPAttrCurState | QPAttrQKey},
	{QPStateSQD, QPStateSQD}:    {optional: QPAttrPKeyIndex | QPAttrQKey},
	{QPStateSQE, QPStateRTS}:    {optional: QPAttrCurState | QPAttrQKey},
}

var initiatorTransitions = map[transition]attrRule{
	{QPStateReset, QPStateInit}: {required: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateInit}:  {optional: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateRTR}: {
		required: QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN,
		optional: QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex,
	},
	{QPStateRTR, QPStateRTS}: {
		required: QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRdAtomic,
		optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrPathMigState,
	},
	{QPStateRTS, QPStateRTS}: {optional: QPAttrCurState | QPAttrAccess | QPAttrAltPath | QPAttrPathMigState},
	{QPStateRTS, QPStateSQD}: {optional: QPAttrEnSQDNotify},
	{QPStateSQD, QPStateRTS}: {optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrPathMigState},
	{QPStateSQE, QPStateRTS}: {},
	{QPStateSQD, QPStateSQD}: {
		optional: QPAttrPort | QPAttrAV | QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry | QPAttrMaxRdAtomic |
			QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex | QPAttrPathMigState,
	},
}

var targetTransitions = map[transition]attrRule{
	{QPStateReset, QPStateInit}: {required: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateInit}:  {optional: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{QPStateInit, QPStateRTR}: {
		required: QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer,
		optional: QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex,
	},
	{QPStateRTR, QPStateRTS}: {
		required: QPAttrTimeout | QPAttrSQPSN,
		optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrMinRNRTimer | QPAttrPathMigState,
	},
	{QPStateRTS, QPStateRTS}: {
		optional: QPAttrCurState | QPAttrAccess | QPAttrAltPath | QPAttrPathMigState | QPAttrMinRNRTimer,
	},
	{QPStateRTS, QPStateSQD}: {optional: QPAttrEnSQDNotify},
	{QPStateSQD, QPStateRTS}: {
		optional: QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrMinRNRTimer | QPAttrPathMigState,
	},
	{QPStateSQE, QPStateRTS}: {},
	{QPStateSQD, QPStateSQD}: {
		optional: QPAttrPort | QPAttrAV | QPAttrTimeout | QPAttrMaxDestRdAtomic | QPAttrAltPath | QPAttrAccess |
			QPAttrPKeyIndex | QPAttrMinRNRTimer | QPAttrPathMigState,
	},
}

// meaningless are the attributes that a QP of a type does not have. The kernel ignores them
// (core/uverbs_cmd.c, modify_qp_mask), so that the ends of a connection of XRC may be moved as
// those of RC are.
var meaningless = map[QPType]QPAttrMask{
	QPTypeXRCInitiator: QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer,
	QPTypeXRCTarget:    QPAttrMaxRdAtomic | QPAttrRetryCount | QPAttrRNRRetry,
}

func checkTransition(typ QPType, cur QPState, attr *QPAttr, mask QPAttrMask) error {
	to := cur
	if mask&QPAttrState != 0 {
		to = attr.State
	}
	switch f := findFault(typ, cur, attr, mask); {
	case f.elsewhere:
		return fmt.Errorf("%w: QP is in %v, not in %v", ErrInvalid, cur, attr.CurState)
	case f.none:
		return fmt.Errorf("%w: no transition from %v to %v", ErrInvalid, cur, to)
	case f.missing != 0:
		return fmt.Errorf("%w: %v to %v lacks attributes %#x", ErrInvalid, cur, to, uint32(f.missing))
	case f.extra != 0:
		return fmt.Errorf("%w: %v to %v does not allow attributes %#x", ErrInvalid, cur, to, uint32(f.extra))
	}
	return nil
}

// transitionFault is what is wrong with a transition; the zero value is nothing.
type transitionFault struct {
	elsewhere, none bool // the QP is in another state than attr says; there is no such transition
	missing, extra  QPAttrMask
}

// findFault decides without words: a test asks it for every mask that there is.
func findFault(typ QPType, cur QPState, attr *QPAttr, mask QPAttrMask) transitionFault {
	to := cur
	if mask&QPAttrState != 0 {
		to = attr.State
	}
	if mask&QPAttrCurState != 0 && attr.CurState != cur {
		return transitionFault{elsewhere: true}
	}
	rule, ok := ruleFor(typ, cur, to)
	if !ok {
		return transitionFault{none: true}
	}
	mask &^= meaningless[typ]
	return transitionFault{missing: rule.required &^ mask, extra: mask &^ (rule.required | rule.optional | QPAttrState)}
}

func ruleFor(typ QPType, cur, to QPState) (rule attrRule, ok bool) {
	if to == QPStateReset || to == QPStateErr && cur != QPStateReset {
		return attrRule{}, true
	}
	table := rcTransitions
	switch typ {
	case QPTypeUC:
		table = ucTransitions
	case QPTypeUD:
		table = udTransitions
	case QPTypeXRCInitiator:
		table = initiatorTransitions
	case QPTypeXRCTarget:
		table = targetTransitions
	}
	rule, ok = table[transition{cur, to}]
	return rule, ok
}

// checkAttrValues checks the ranges of the attributes in mask that the
// specification or the device sets.
func checkAttrValues(attr *QPAttr, mask QPAttrMask, dev *DeviceAttr) error {
	const maxPSN = 1<<24 - 1
	switch {
	case mask&QPAttrPort != 0 && (attr.Port == 0 || int(attr.Port) > dev.PhysPorts):
		return fmt.Errorf("%w: port %d, the device has %d", ErrInvalid, attr.Port, dev.PhysPorts)
	case mask&QPAttrAccess != 0 && attr.Access&^accessKnown != 0:
		return fmt.Errorf("%w: unknown access rights %#x", ErrInvalid, uint32(attr.Access&^accessKnown))
	case mask&QPAttrAV != 0 && (attr.AV.FlowLabel >= 1<<20 || attr.AV.SL >= 1<<4):
		return fmt.Errorf("%w: flow label %#x of 20 bits, service level %d of 4", ErrInvalid, attr.AV.FlowLabel, attr.AV.SL)
	case mask&QPAttrRQPSN != 0 && attr.RQPSN > maxPSN, mask&QPAttrSQPSN != 0 && attr.SQPSN > maxPSN:
		return fmt.Errorf("%w: packet number has more than 24 bits", ErrInvalid)
	case mask&QPAttrMaxRdAtomic != 0 && int(attr.MaxRdAtomic) > dev.MaxQPInitRdAtomic:
		return fmt.Errorf("%w: %d READs and atomics as initiator, the device allows %d", ErrInvalid, attr.MaxRdAtomic, dev.MaxQPInitRdAtomic)
	case mask&QPAttrMaxDestRdAtomic != 0 && int(attr.MaxDestRdAtomic) > dev.MaxQPRdAtomic:
		return fmt.Errorf("%w: %d READs and atomics as responder, the device allows %d", ErrInvalid, attr.MaxDestRdAtomic, dev.MaxQPRdAtomic)
	case mask&QPAttrPathMTU != 0 && attr.PathMTU.Bytes() == 0:
		return fmt.Errorf("%w: path MTU code %d", ErrInvalid, attr.PathMTU)
	case mask&QPAttrRetryCount != 0 && attr.RetryCount > 7:
		return fmt.Errorf("%w: retry count %d, at most 7", ErrInvalid, attr.RetryCount)
	case mask&QPAttrRNRRetry != 0 && attr.RNRRetry > 7:
		return fmt.Errorf("%w: RNR retry %d, at most 7", ErrInvalid, attr.RNRRetry)
	case mask&QPAttrTimeout != 0 && attr.Timeout > 31:
		return fmt.Errorf("%w: timeout code %d, at most 31", ErrInvalid, attr.Timeout)
	case mask&QPAttrMinRNRTimer != 0 && attr.MinRNRTimer > 31:
		return fmt.Errorf("%w: RNR timer code %d, at most 31", ErrInvalid, attr.MinRNRTimer)
	case mask&QPAttrDestQPN != 0 && attr.DestQPN >= 1<<24:
		return fmt.Errorf("%w: QP number %#x has more than 24 bits", ErrInvalid, attr.DestQPN)
	}
	return nil
}
