package verbstest

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// Pair is two open contexts whose QPs can be connected. They may be of one
// device.
type Pair struct {
	A, B *verbs.Context
	// GIDIndexA and GIDIndexB select the rows of the GID tables that are used.
	GIDIndexA, GIDIndexB int
	// Connect connects two QPs in RESET, a of context A dialing, where that
	// takes a connection manager (iWARP). nil: Modify does it.
	Connect func(a, b *verbs.QP) error
	// Also names statuses by which the device reports failures for which the
	// specification has another one, the key: both are taken.
	Also map[verbs.WCStatus][]verbs.WCStatus
	// SingleThreaded makes the QPs and CQs so, of all tests that keep the promise.
	SingleThreaded bool
	// Lacks says what the device does not do although the specification
	// says so, and no capability bit tells.
	Lacks Lack
}

// Lack is a set of things that a device does not do.
type Lack uint

// The lacks.
const (
	// LackAccessEvent: a request that the responder refuses is no event there.
	LackAccessEvent Lack = 1 << iota
	// LackRegionInvalidation: SEND_WITH_INV takes the keys of memory windows
	// away, but not those of regions that a program has registered.
	LackRegionInvalidation
	// LackWindowBounds: a memory window lets peers reach all of the region
	// that it is bound to.
	LackWindowBounds
	// LackPrivilegedQKey: a Q_Key with the upper bit set is sent as it is.
	LackPrivilegedQKey
	// LackFlushEvent: flushed receives do not count as solicited.
	LackFlushEvent
	// LackSRQBound: an SRQ takes more receives than it says.
	LackSRQBound
	// LackLateRefusal: an atomic at an address that is not aligned is refused when it is
	// posted.
	LackLateRefusal
	// LackResume: what was posted in SQD waits, in RTS too, until something else is posted.
	LackResume
	// LackBoundAfterSQE: once a request has failed, the send queue of a UC or UD QP takes
	// more than the completions that nobody has polled leave room for.
	LackBoundAfterSQE
	// LackBoundRegion: a region can be closed while a memory window is bound to it, which
	// then lets nobody in.
	LackBoundRegion
	// LackSQE: a request that fails takes a QP without reliability to ERR, not to SQE.
	LackSQE
)

// accepts reports whether a status is what a test wants.
func (p *Pair) accepts(want, got verbs.WCStatus) bool {
	return got == want || slices.Contains(p.Also[want], got)
}

// suite is one run of the tests over a provider.
type suite struct {
	open func(testing.TB) Pair
}

// Run runs all tests. open is called once for each; it closes the contexts
// when the test ends (t.Cleanup).
func Run(t *testing.T, open func(testing.TB) Pair) {
	s := &suite{open: open}
	groups := []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"Device", testDevice},
		{"Transfer", testTransfer},
		{"Atomic", testAtomic},
		{"Order", testOrder},
		{"Refusal", testRefusal},
		{"LocalError", testLocalErrors},
		{"RNR", testRNR},
		{"Flush", testFlush},
		{"Event", testEvents},
		{"Queue", testQueues},
		{"Timestamp", testTimestamps},
		{"Clock", testClock},
		{"State", testStates},
		{"Transition", testTransitions},
		{"SRQ", testSRQ},
		{"XRC", testXRC},
		{"Invalidate", testInvalidate},
		{"Window", testWindows},
		{"Reregister", testReregister},
		{"Memory", testMemory},
		{"DeviceMemory", testDeviceMemory},
		{"Datagram", testDatagrams},
		{"Unreliable", testUnreliable},
		{"Durable", testDurable},
		{"Batch", testBatch},
		{"Contract", testContract},
		{"Lifetime", testLifetimes},
		{"Concurrency", testConcurrency},
		{"SingleThreaded", testSingleThreaded},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) { g.run(t, s) })
	}
}

// config is what a test wants different from the usual.
type config struct {
	cap       verbs.QPCap
	cqe       int
	stamps    bool
	signalAll bool
	single    bool // SingleThreaded
	memory    int
	memAccess verbs.Access // 0: every right
	qpAccess  verbs.Access // of both QPs; noAccess for none, 0: every right
	minRNR    uint8
	rnrRetry  uint8
	retry     uint8
	timeout   uint8
	srq       *verbs.SRQAttr // of side b
}

const (
	everyRight = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	noAccess   = verbs.AccessLocalWrite // of a QP: nothing comes in

	patience = 20 * time.Second // for what must happen; no test waits that long
)

var usual = config{
	cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 32},
	cqe: 256, memory: 4 << 20, minRNR: 1, rnrRetry: 7, retry: 7, timeout: 14,
}

// side is one end of a connected pair.
type side struct {
	t    testing.TB
	ctx  *verbs.Context
	pd   *verbs.PD
	ch   *verbs.CompChannel
	send *verbs.CQ
	recv *verbs.CQ
	qp   *verbs.QP
	srq  *verbs.SRQ
	mr   *verbs.MR
	gid  verbs.GIDEntry
	lid  uint16
	conf config
	pair *Pair
}

// connected makes two sides, a and b, with their QPs in RTS.
func (s *suite) connected(t testing.TB, conf config) (a, b *side) {
	t.Helper()
	a, b = s.sides(t, conf)
	join(a, b)
	return a, b
}

// join connects the QPs of two sides, which are in RESET.
func join(a, b *side) {
	a.t.Helper()
	if a.pair.Connect != nil {
		require.NoError(a.t, a.pair.Connect(a.qp, b.qp))
		return
	}
	a.connect(b)
	b.connect(a)
}

// sides makes two sides with their QPs in RESET.
func (s *suite) sides(t testing.TB, conf config) (a, b *side) {
	t.Helper()
	p := s.open(t)
	conf.single = conf.single || p.SingleThreaded
	confA := conf
	confA.srq = nil
	a, b = newSide(t, p.A, p.GIDIndexA, confA), newSide(t, p.B, p.GIDIndexB, conf)
	a.pair, b.pair = &p, &p
	return a, b
}

func newSide(t testing.TB, ctx *verbs.Context, gidIndex int, conf config) *side {
	t.Helper()
	s := &side{t: t, ctx: ctx, conf: conf}
	gids, err := ctx.QueryGIDs(1)
	require.NoError(t, err)
	for _, g := range gids {
		if g.Index == gidIndex {
			s.gid = g
		}
	}
	port, err := ctx.QueryPort(1)
	require.NoError(t, err)
	s.lid = port.LID
	s.pd, err = ctx.AllocPD()
	require.NoError(t, err)
	s.ch, err = ctx.CreateCompChannel()
	require.NoError(t, err)
	s.send, err = ctx.CreateCQ(verbs.CQAttr{CQE: conf.cqe, Timestamps: conf.stamps, SingleThreaded: conf.single}, s.ch)
	require.NoError(t, err)
	s.recv, err = ctx.CreateCQ(verbs.CQAttr{CQE: conf.cqe, Timestamps: conf.stamps, SingleThreaded: conf.single}, s.ch)
	require.NoError(t, err)
	if conf.srq != nil {
		s.srq, err = s.pd.CreateSRQ(*conf.srq)
		require.NoError(t, err)
	}
	access := conf.memAccess
	if access == 0 {
		access = everyRight
	}
	s.mr, err = s.pd.AllocMR(conf.memory, access, verbs.MROptions{})
	require.NoError(t, err)
	s.qp = s.newQP()
	return s
}

func (s *side) newQP() *verbs.QP {
	s.t.Helper()
	c := s.conf.cap
	if s.srq != nil {
		c.MaxRecvWR = 0
	}
	qp, err := s.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: s.send, RecvCQ: s.recv, SRQ: s.srq, Cap: c, SignalAll: s.conf.signalAll,
		SingleThreaded: s.conf.single, PlaceAtPoll: s.conf.single,
	})
	require.NoError(s.t, err)
	return qp
}

// connect brings the QP to RTS towards that of peer.
func (s *side) connect(peer *side) {
	s.t.Helper()
	s.toInit()
	s.toRTR(peer)
	s.toRTS()
}

// rights are all that a QP of the device can give.
func (s *side) rights() verbs.Access {
	if s.ctx.Attr().Caps.Has(verbs.CapAtomics) {
		return everyRight
	}
	return everyRight &^ verbs.AccessRemoteAtomic
}

func (s *side) toInit() {
	s.t.Helper()
	if s.pair.Connect != nil {
		s.t.Skip("a connection manager moves the QPs of this device")
	}
	access := s.conf.qpAccess
	if access == 0 {
		access = s.rights()
	}
	require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
}

func (s *side) toRTR(peer *side) {
	s.t.Helper()
	require.NoError(s.t, s.qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: peer.qp.Num(), RQPSN: 100, MaxDestRdAtomic: 1,
		MinRNRTimer: s.conf.minRNR,
		AV:          s.vectorTo(peer),
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer))
}

// vectorTo is the way to peer. On InfiniBand that takes the LID of its port too.
func (s *side) vectorTo(peer *side) verbs.AddressVector {
	return verbs.AddressVector{
		DGID: peer.gid.GID, SGIDIndex: uint8(s.gid.Index), HopLimit: 64, IsGlobal: true, DLID: peer.lid, Port: 1,
	}
}

func (s *side) toRTS() {
	s.t.Helper()
	require.NoError(s.t, s.qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTS, Timeout: s.conf.timeout, RetryCount: s.conf.retry, RNRRetry: s.conf.rnrRetry,
		SQPSN: 100, MaxRdAtomic: 1,
	}, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic))
}

// post posts send requests, all of which must be taken.
func (s *side) post(wrs ...verbs.SendWR) {
	s.t.Helper()
	n, err := s.qp.PostSend(wrs)
	require.NoError(s.t, err)
	require.Len(s.t, wrs, n)
}

// receive posts receives, to the SRQ if there is one.
func (s *side) receive(wrs ...verbs.RecvWR) {
	s.t.Helper()
	var n int
	var err error
	if s.srq != nil {
		n, err = s.srq.PostRecv(wrs)
	} else {
		n, err = s.qp.PostRecv(wrs)
	}
	require.NoError(s.t, err)
	require.Len(s.t, wrs, n)
}

// receives makes n receives with ids from first on and no memory.
func receives(first uint64, n int) []verbs.RecvWR {
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		wrs[i].ID = first + uint64(i)
	}
	return wrs
}

// poll waits for n completions of cq.
func (s *side) poll(cq *verbs.CQ, n int) []verbs.WC {
	s.t.Helper()
	wcs := make([]verbs.WC, n)
	got := 0
	for deadline := time.Now().Add(patience); got < n; {
		k, err := cq.Poll(wcs[got:])
		require.NoError(s.t, err)
		if got += k; k == 0 {
			require.True(s.t, time.Now().Before(deadline), "%d of %d completions came: %+v", got, n, wcs[:got])
			time.Sleep(20 * time.Microsecond)
		}
	}
	return wcs
}

// sent waits for one completion of the send CQ, which must be of status.
func (s *side) sent(id uint64, status verbs.WCStatus) verbs.WC {
	s.t.Helper()
	wc := s.poll(s.send, 1)[0]
	require.True(s.t, s.pair.accepts(status, wc.Status), "%v, not %v", wc.Status, status)
	require.Equal(s.t, id, wc.ID)
	require.Equal(s.t, s.qp.Num(), wc.QPN)
	return wc
}

// received does the same for the receive CQ.
func (s *side) received(id uint64, status verbs.WCStatus) verbs.WC {
	s.t.Helper()
	wc := s.poll(s.recv, 1)[0]
	require.True(s.t, s.pair.accepts(status, wc.Status), "%v, not %v", wc.Status, status)
	require.Equal(s.t, id, wc.ID)
	require.Equal(s.t, s.qp.Num(), wc.QPN)
	return wc
}

// silent checks that a CQ has nothing. What is checked for would have come
// before something that the caller has waited for.
func (s *side) silent(cq *verbs.CQ) {
	s.t.Helper()
	wcs := make([]verbs.WC, 1)
	n, err := cq.Poll(wcs)
	require.NoError(s.t, err)
	require.Zero(s.t, n, "%+v", wcs)
}

// event waits for an event of the context. If none comes within patience it
// closes the context, which ends the wait too.
func (s *side) event() (verbs.AsyncEvent, error) {
	defer time.AfterFunc(patience, func() { _ = s.ctx.Close() }).Stop()
	return s.ctx.NextEvent()
}

// awaitState waits until the QP is in state.
func (s *side) awaitState(state verbs.QPState) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		a, err := s.qp.Query()
		return err == nil && a.State == state
	}, patience, time.Millisecond, "QP does not reach %v", state)
}

// leaves waits until the QP is not in state any more, and returns where it is. A device
// makes the completion before it changes the state.
func (s *side) leaves(state verbs.QPState) verbs.QPState {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		attr, err := s.qp.Query()
		require.NoError(s.t, err)
		if attr.State != state {
			return attr.State
		}
		require.True(s.t, time.Now().Before(deadline), "the QP stays in %v", state)
		time.Sleep(20 * time.Microsecond)
	}
}

// goesToErr is called where a request that fails has taken a QP without reliability to ERR,
// where others go to SQE.
func (s *side) goesToErr() {
	s.t.Helper()
	require.NotZero(s.t, s.pair.Lacks&LackSQE, "a QP without reliability is in SQE when a request of its own fails")
}

// pattern fills b with bytes that depend on seed and position.
func pattern(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = byte(i*7+i>>8) ^ seed
	}
	return b
}
