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

func TestNumbersOfQPsAndSRQsHave24Bits(t *testing.T) {
	pd := &PD{ctx: &Context{attr: DeviceAttr{Caps: ^Cap(0)}}}
	ud, xrc := &QP{ctx: pd.ctx, attr: QPInitAttr{Type: QPTypeUD}}, &QP{ctx: pd.ctx, attr: QPInitAttr{Type: QPTypeXRCInitiator}}
	for num, want := range map[uint32]error{1<<24 - 1: nil, 1 << 24: ErrInvalid, 1<<32 - 1: ErrInvalid} {
		require.ErrorIs(t, ud.checkSend(&SendWR{Opcode: OpSend, Datagram: &Datagram{AH: &AH{pd: pd}, QPN: num}}), want, "%#x", num)
		require.ErrorIs(t, xrc.checkSend(&SendWR{Opcode: OpSend, RemoteSRQ: num}), want, "%#x", num)
	}
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
	for _, op := range []Opcode{OpRead, OpCompareSwap, OpFetchAdd, OpFlush, OpAtomicWrite, OpSendWithInv} {
		require.ErrorIs(t, qp.checkSend(&SendWR{Opcode: op}), ErrInvalid, "%v", op)
	}
	require.NoError(t, qp.checkSend(&SendWR{Opcode: OpWriteWithImm}))
}

func TestAnAtomicWriteIsOfAnAlignedWord(t *testing.T) {
	qp := &QP{ctx: &Context{attr: DeviceAttr{Caps: ^Cap(0)}}, attr: QPInitAttr{Type: QPTypeRC, Cap: QPCap{MaxInline: 16, MaxSendSGE: 1}}}
	word := func(n int) [][]byte { return [][]byte{make([]byte, n)} }
	for _, c := range []struct {
		wr SendWR
		ok bool
	}{
		{SendWR{Flags: SendInline, Inline: word(8), RemoteAddr: 16}, true},
		{SendWR{Flags: SendInline, Inline: word(8), RemoteAddr: 12}, false},
		{SendWR{Flags: SendInline, Inline: word(7), RemoteAddr: 16}, false},
		{SendWR{Flags: SendInline, Inline: word(9), RemoteAddr: 16}, false},
		{SendWR{SGL: []SGE{{Length: 8}}, RemoteAddr: 16}, false},
	} {
		c.wr.Opcode = OpAtomicWrite
		if err := qp.checkSend(&c.wr); c.ok {
			require.NoError(t, err, "%+v", c.wr)
		} else {
			require.ErrorIs(t, err, ErrInvalid, "%+v", c.wr)
		}
	}
}

func TestAQPWithAnSRQTakesNoReceives(t *testing.T) {
	for _, attr := range []QPInitAttr{{Type: QPTypeRC, SRQ: new(SRQ)}, {Type: QPTypeXRCInitiator}, {Type: QPTypeXRCTarget}} {
		n, err := (&QP{ctx: new(Context), drv: takes{room: 1}, attr: attr}).PostRecv([]RecvWR{{}})
		require.Zero(t, n)
		require.ErrorIs(t, err, ErrInvalid)
	}
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

// takes is a queue with room for so many requests.
type takes struct {
	QPDriver
	room int
}

func (q takes) PostSend(wrs []SendWR) (int, error) { return q.take(len(wrs)) }

func (q takes) PostRecv(wrs []RecvWR) (int, error) { return q.take(len(wrs)) }

func (q takes) take(n int) (int, error) {
	if n > q.room {
		return q.room, ErrQueueFull
	}
	return n, nil
}

// takesToo is the same, of an SRQ.
type takesToo struct {
	SRQDriver
	queue takes
}

func (s takesToo) PostRecv(wrs []RecvWR) (int, error) { return s.queue.PostRecv(wrs) }

// The error is about the first request that was not taken: the device's own comes before that of
// one which is wrong, and behind.
func TestAPostFailsWithTheFirstRequestThatIsNotTaken(t *testing.T) {
	tooMany := make([]SGE, 2)
	sends, recvs := []SendWR{{Opcode: OpSend}, {Opcode: OpSend}, {Opcode: OpSend, SGL: tooMany}}, []RecvWR{{}, {}, {SGL: tooMany}}
	for _, tracer := range []*Tracer{nil, {}} {
		for _, c := range []struct {
			room, posted, n int
			want            error
		}{{3, 2, 2, nil}, {3, 3, 2, ErrInvalid}, {2, 3, 2, ErrInvalid}, {1, 3, 1, ErrQueueFull}, {1, 2, 1, ErrQueueFull}, {0, 1, 0, ErrQueueFull}} {
			ctx := new(Context)
			ctx.SetTracer(tracer)
			queue := takes{room: c.room}
			qp := &QP{ctx: ctx, drv: queue, plain: plainOperations(QPTypeRC, 0), attr: QPInitAttr{Type: QPTypeRC, Cap: QPCap{MaxSendSGE: 1, MaxRecvSGE: 1}}}
			srq := &SRQ{pd: &PD{ctx: ctx}, drv: takesToo{queue: queue}, maxSGE: 1}
			for name, post := range map[string]func() (int, error){
				"PostSend":     func() (int, error) { return qp.PostSend(sends[:c.posted]) },
				"PostRecv":     func() (int, error) { return qp.PostRecv(recvs[:c.posted]) },
				"SRQ.PostRecv": func() (int, error) { return srq.PostRecv(recvs[:c.posted]) },
			} {
				n, err := post()
				require.Equal(t, c.n, n, "%s: %+v", name, c)
				require.ErrorIs(t, err, c.want, "%s: %+v", name, c)
			}
		}
	}
}

func TestQueuesOfAQPAreOfItsDevice(t *testing.T) {
	device := func() *PD { return &PD{ctx: new(Context)} }
	here, there := device(), device()
	cq := func(pd *PD, attr CQAttr) *CQ { return &CQ{ctx: pd.ctx, attr: attr} }
	plain, single := cq(here, CQAttr{}), cq(here, CQAttr{SingleThreaded: true})
	for _, c := range []struct {
		name string
		attr QPInitAttr
		ok   bool
	}{
		{"all is", QPInitAttr{SendCQ: plain, RecvCQ: plain, SRQ: &SRQ{pd: here}}, true},
		{"send CQ of another", QPInitAttr{SendCQ: cq(there, CQAttr{}), RecvCQ: plain}, false},
		{"receive CQ of another", QPInitAttr{SendCQ: plain, RecvCQ: cq(there, CQAttr{})}, false},
		{"SRQ of another", QPInitAttr{SendCQ: plain, RecvCQ: plain, SRQ: &SRQ{pd: there}}, false},
		{"SRQ of an XRC domain", QPInitAttr{SendCQ: plain, RecvCQ: plain, SRQ: &SRQ{pd: here, num: 1}}, false},
		{"a promise of the send CQ alone", QPInitAttr{SendCQ: single, RecvCQ: plain}, false},
		{"a promise of both", QPInitAttr{SendCQ: single, RecvCQ: plain, SingleThreaded: true}, true},
		{"a promise of the receive CQ", QPInitAttr{SendCQ: plain, RecvCQ: single}, true},
	} {
		c.attr.Type = QPTypeRC
		if err := here.checkQP(&c.attr); c.ok {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorIs(t, err, ErrInvalid, c.name)
		}
	}
}

// Of these the lengths add up to 5 in 32 bits.
func TestALengthThatAnIntHasNoRoomForIsNotTakenForAnother(t *testing.T) {
	qp := &QP{ctx: new(Context), drv: takes{room: 1}, plain: plainOperations(QPTypeRC, 0), attr: QPInitAttr{Type: QPTypeRC, Cap: QPCap{MaxSendSGE: 2}}}
	wr := SendWR{Opcode: OpWrite, SGL: []SGE{{Length: 1 << 31}, {Length: 1<<31 + 5}}}
	require.Equal(t, wide, wr.countable())
	n, err := qp.PostSend([]SendWR{wr})
	if wide {
		require.NoError(t, err) // and the device refuses it
		require.Equal(t, uint64(1<<32+5), uint64(wr.Len()))
		return
	}
	require.Zero(t, n)
	require.ErrorIs(t, err, ErrInvalid)
}
