//go:build linux

package soft_test

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// end is one side of a pair, with what most tests need.
type end struct {
	ctx  *verbs.Context
	pd   *verbs.PD
	ch   *verbs.CompChannel
	send *verbs.CQ
	recv *verbs.CQ
	srq  *verbs.SRQ // nil: the QP has a receive queue of its own
	qp   *verbs.QP
	mr   *verbs.MR
	peer address
}

const everyRight = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// shape says what an end looks like.
type shape struct {
	cap    verbs.QPCap
	memory int
	cqe    int
	srq    bool // receives are posted to one
	single bool // SingleThreaded
	atPoll bool // PlaceAtPoll
}

var usual = shape{
	cap:    verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 1 << 20},
	memory: 1 << 20, cqe: 1024,
}

func newEnd(t testing.TB, s shape) *end {
	t.Helper()
	e, err := makeEnd(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.close()) })
	return e
}

// makeEnd returns what it made, with an error too.
func makeEnd(s shape) (*end, error) {
	e := &end{}
	var err error
	if e.ctx, err = verbs.Open(soft.DeviceName); err != nil {
		return e, err
	}
	return e, e.populate(s)
}

// populate makes everything on the context.
func (e *end) populate(s shape) error {
	var err error
	step := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	step(func() error { e.pd, err = e.ctx.AllocPD(); return err })
	step(func() error { e.ch, err = e.ctx.CreateCompChannel(); return err })
	step(func() error {
		e.send, err = e.ctx.CreateCQ(verbs.CQAttr{CQE: s.cqe, SingleThreaded: s.single}, e.ch)
		return err
	})
	step(func() error {
		e.recv, err = e.ctx.CreateCQ(verbs.CQAttr{CQE: s.cqe, SingleThreaded: s.single}, e.ch)
		return err
	})
	step(func() error {
		if s.srq {
			if e.srq, err = e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: s.cap.MaxRecvWR, MaxSGE: s.cap.MaxRecvSGE}); err != nil {
				return err
			}
		}
		e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{
			Type: verbs.QPTypeRC, SendCQ: e.send, RecvCQ: e.recv, SRQ: e.srq, Cap: s.cap, SingleThreaded: s.single, PlaceAtPoll: s.atPoll,
		})
		return err
	})
	step(func() error { e.mr, err = e.pd.AllocMR(s.memory, everyRight, verbs.MROptions{}); return err })
	return err
}

func (e *end) close() error { return e.ctx.Close() }

// address names an end to the other one.
type address struct {
	GID  verbs.GID
	QPN  uint32
	Addr uint64
	RKey uint32
}

func (e *end) address() (address, error) {
	gids, err := e.ctx.QueryGIDs(1)
	if err != nil {
		return address{}, err
	}
	return address{GID: gids[0].GID, QPN: e.qp.Num(), Addr: e.mr.Addr(), RKey: e.mr.RKey()}, nil
}

// connect brings the QP to RTS towards peer.
func (e *end) connect(peer address) error {
	err := e.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: everyRight &^ verbs.AccessLocalWrite},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	if err != nil {
		return err
	}
	err = e.qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, AV: verbs.AddressVector{DGID: peer.GID, IsGlobal: true, Port: 1}, DestQPN: peer.QPN,
		PathMTU: verbs.MTU4096, MaxDestRdAtomic: 1, MinRNRTimer: 1,
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer)
	if err != nil {
		return err
	}
	// With its retries the timeout is 5 s: half a second passes on a busy machine
	// before the peer has answered.
	return e.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 18, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic)
}

// newPair is two ends of this process, connected.
func newPair(t testing.TB, s shape) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, s), newEnd(t, s)
	forB, err := a.address()
	require.NoError(t, err)
	forA, err := b.address()
	require.NoError(t, err)
	require.NoError(t, a.connect(forA))
	require.NoError(t, b.connect(forB))
	return a, b
}

// postRecv posts a receive.
func (e *end) postRecv(t testing.TB) {
	t.Helper()
	post := e.qp.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	_, err := post(make([]verbs.RecvWR, 1))
	require.NoError(t, err)
}

// poll waits for n completions; the deadline of the test run ends it if they
// do not come.
func poll(t testing.TB, cq *verbs.CQ, n int) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, n)
	got := 0
	for deadline := time.Now().Add(10 * time.Second); got < n; {
		k, err := cq.Poll(wcs[got:])
		require.NoError(t, err)
		got += k
		require.True(t, k > 0 || time.Now().Before(deadline), "%d of %d completions came", got, n)
		if k == 0 {
			time.Sleep(10 * time.Microsecond)
		}
	}
	return wcs
}
