package verbs_test

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// These tests run over the software HCA. They are about what this package
// does around a provider. What it promises of every device is in
// verbs/verbstest, which runs over those that RAMJET_DEVICES names too.

func open(t testing.TB) *verbs.Context {
	t.Helper()
	dev, err := verbs.Open("soft0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// bench is a device with a PD and a CQ to make QPs on.
type bench struct {
	dev *verbs.Context
	pd  *verbs.PD
	cq  *verbs.CQ
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{dev: open(t)}
	var err error
	b.pd, err = b.dev.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.pd.Close()) })
	b.cq, err = b.dev.CreateCQ(verbs.CQAttr{CQE: 128}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.cq.Close()) })
	return b
}

func (b *bench) attr() verbs.QPInitAttr {
	return verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: b.cq, RecvCQ: b.cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64},
	}
}

func (b *bench) qp(t testing.TB) *verbs.QP {
	t.Helper()
	qp, err := b.pd.CreateQP(b.attr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	return qp
}

// poll waits for n completions; the wait ends with them or with the test's
// deadline.
func (b *bench) poll(t testing.TB, n int) []verbs.WC {
	t.Helper()
	var got []verbs.WC
	buf := make([]verbs.WC, n)
	for len(got) < n {
		k, err := b.cq.Poll(buf[:n-len(got)])
		require.NoError(t, err)
		got = append(got, buf[:k]...)
		if k == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	return got
}

const (
	initMask = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	rtrMask  = verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
		verbs.QPAttrMaxDestRdAtomic | verbs.QPAttrMinRNRTimer
	rtsMask = verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
		verbs.QPAttrSQPSN | verbs.QPAttrMaxRdAtomic
)

func toInit(qp *verbs.QP) error {
	return qp.Modify(verbs.QPAttr{
		State: verbs.QPStateInit, Port: 1,
		Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal,
	}, initMask)
}

// toRTS connects a QP in INIT to the QP called num of the device with gid.
func toRTS(qp *verbs.QP, gid verbs.GID, num uint32) error {
	err := qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, AV: verbs.AddressVector{DGID: gid, IsGlobal: true, Port: 1},
		PathMTU: verbs.MTU4096, DestQPN: num, MaxDestRdAtomic: 1, MinRNRTimer: 1,
	}, rtrMask)
	if err != nil {
		return err
	}
	return qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1,
	}, rtsMask)
}

// connected returns two QPs that are connected to each other.
func (b *bench) connected(t testing.TB) (qp, peer *verbs.QP) {
	t.Helper()
	gids, err := b.dev.QueryGIDs(1)
	require.NoError(t, err)
	qp, peer = b.qp(t), b.qp(t)
	require.NoError(t, toInit(qp))
	require.NoError(t, toInit(peer))
	require.NoError(t, toRTS(qp, gids[0].GID, peer.Num()))
	require.NoError(t, toRTS(peer, gids[0].GID, qp.Num()))
	return qp, peer
}
