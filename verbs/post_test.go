package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequestsNameOnlyWhatIsOfTheirDevice(t *testing.T) {
	device := func() *PD { return &PD{ctx: &Context{attr: DeviceAttr{Caps: CapUD | CapMemWindow}}} }
	here, there := device(), device()
	rc, ud := &QP{ctx: here.ctx}, &QP{ctx: here.ctx, attr: QPInitAttr{Type: QPTypeUD}}
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
	qp := &QP{ctx: new(Context)}
	for bit := range 8 {
		err := qp.checkSend(&SendWR{Opcode: OpSend, Flags: 1 << bit})
		if bit < 4 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrInvalid)
		}
	}
}

func TestServicesNeedTheirCapability(t *testing.T) {
	for typ, need := range map[QPType]Cap{QPTypeUC: CapUC, QPTypeUD: CapUD, QPTypeXRCInitiator: CapXRC, QPTypeXRCTarget: CapXRC} {
		ctx := &Context{}
		pd := &PD{ctx: ctx}
		require.ErrorIs(t, pd.checkQP(&QPInitAttr{Type: typ}), ErrUnsupported)
		ctx.attr.Caps = need
		require.ErrorIs(t, pd.checkQP(&QPInitAttr{Type: typ}), ErrInvalid, "it has no CQs")
	}
}

func TestAnUnreliableQPPostsNothingThatIsAnswered(t *testing.T) {
	qp := &QP{ctx: &Context{attr: DeviceAttr{Caps: ^Cap(0)}}, attr: QPInitAttr{Type: QPTypeUC}}
	for _, op := range []Opcode{OpRead, OpCompareSwap, OpFetchAdd, OpFlush, OpAtomicWrite} {
		require.ErrorIs(t, qp.checkSend(&SendWR{Opcode: op}), ErrInvalid, "%v", op)
	}
	require.NoError(t, qp.checkSend(&SendWR{Opcode: OpWriteWithImm}))
}

func TestAFlushIsOfAKindThatExists(t *testing.T) {
	qp := &QP{ctx: &Context{attr: DeviceAttr{Caps: ^Cap(0)}}, attr: QPInitAttr{Type: QPTypeRC}}
	for _, f := range []Flush{{}, {Type: 4}, {Type: FlushGlobal, Level: 2}} {
		require.ErrorIs(t, qp.checkSend(&SendWR{Opcode: OpFlush, Flush: &f}), ErrInvalid, "%+v", f)
	}
	require.NoError(t, qp.checkSend(&SendWR{Opcode: OpFlush, Flush: &Flush{Type: FlushGlobal | FlushPersistent, Level: FlushMR}}))
}

// What PostSend looks at no further, checkSend would let pass; and that is what most programs post.
func TestWhatFitsNeedsNoOtherCheck(t *testing.T) {
	all := [...]Cap{0, CapRead, CapAtomics, CapWriteWithImm, CapSendWithImm, ^Cap(0)}
	for _, typ := range []QPType{QPTypeRC, QPTypeUC, QPTypeUD} {
		for _, caps := range all {
			ctx := &Context{attr: DeviceAttr{Caps: caps}}
			qp := &QP{ctx: ctx, attr: QPInitAttr{Type: typ, Cap: QPCap{MaxInline: 8, MaxSendSGE: 1}}, plain: plainOperations(typ, caps)}
			for op := range 40 {
				for flags := range 2 * (sendKnown + 1) {
					for size := range 3 {
						wr := SendWR{Opcode: Opcode(op), Flags: flags, SGL: make([]SGE, size), Inline: [][]byte{make([]byte, 5*size)}}
						fits, err := qp.knows(wr.Opcode, wr.Flags) && qp.hasRoom(&wr), qp.checkSend(&wr)
						if fits && err != nil || !fits && err == nil && typ != QPTypeUD && op <= int(OpFetchAdd) {
							t.Fatalf("%v of flags %#x, %d SGEs and %d bytes on a QP of type %d: fits %v, %v", wr.Opcode, flags, size, 5*size, typ, fits, err)
						}
					}
				}
			}
		}
	}
}
