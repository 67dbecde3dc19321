//go:build amd64 || arm64

package ibverbs

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// single is a device of libmlx5, with a PD and a CQ.
type single struct {
	dev *device
	pd  *verbs.PD
	cq  *verbs.CQ
}

func openSingle(t *testing.T) *single {
	t.Helper()
	name := os.Getenv("RAMJET_DEVICES")
	if name == "" {
		t.Skip("RAMJET_DEVICES names no device")
	}
	ctx, err := verbs.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	s := &single{dev: ctx.Driver().(*device)}
	if s.dev.entry.Driver != "mlx5" {
		t.Skipf("the driver of the device is %q", s.dev.entry.Driver)
	}
	s.pd, err = ctx.AllocPD()
	require.NoError(t, err)
	s.cq = s.createCQ(t, verbs.CQAttr{})
	return s
}

func (s *single) createCQ(t *testing.T, attr verbs.CQAttr) *verbs.CQ {
	t.Helper()
	attr.CQE = 16
	cq, err := s.pd.Context().CreateCQ(attr, nil)
	require.NoError(t, err)
	return cq
}

func (s *single) createQP(t *testing.T, singleThreaded bool) *verbs.QP {
	t.Helper()
	qp, err := s.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: s.cq, RecvCQ: s.cq, SingleThreaded: singleThreaded,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	require.NoError(t, err)
	return qp
}

// inPD reports whether the library has the QP in its PD, and not in a parent domain.
func inPD(t *testing.T, of *verbs.QP) bool {
	t.Helper()
	q := of.Driver().(*qp)
	require.Equal(t, q.domain != threadDomain{}, q.domain.td != 0 && q.domain.parent != 0)
	return view[ibvQP](q.address).pd == q.pd.address
}

func TestASingleThreadedQPHasAThreadDomain(t *testing.T) {
	s := openSingle(t)
	require.True(t, inPD(t, s.createQP(t, false)))
	a, b := s.createQP(t, true), s.createQP(t, true)
	require.False(t, inPD(t, a))
	require.False(t, inPD(t, b))
	require.NotEqual(t, a.Driver().(*qp).domain, b.Driver().(*qp).domain)
	require.ErrorIs(t, s.pd.Close(), verbs.ErrBusy)
}

// The library calls a PD busy of which a parent domain is left.
func TestAThreadDomainGoesWithItsQP(t *testing.T) {
	s := openSingle(t)
	require.NoError(t, s.createQP(t, true).Close())
	require.Zero(t, s.dev.singleThreaded.Load())
	require.NoError(t, s.pd.Close())
}

func TestThreadDomainsAreLimited(t *testing.T) {
	s := openSingle(t)
	first := s.createQP(t, true)
	for range maxThreadDomains - 1 {
		require.False(t, inPD(t, s.createQP(t, true)))
	}
	require.True(t, inPD(t, s.createQP(t, true)), "one more")
	require.NoError(t, first.Close())
	require.False(t, inPD(t, s.createQP(t, true)), "in the place of the first")
}

// Other drivers of the library have none.
func TestASingleThreadedQPNeedsNoThreadDomain(t *testing.T) {
	s := openSingle(t)
	s.dev.extension.allocTD = 0
	qp := s.createQP(t, true)
	require.True(t, inPD(t, qp))
	require.NoError(t, qp.Close())
	require.NoError(t, s.pd.Close())
}

// startPoll is the function of the library that begins to poll a CQ, 0 if it has made none that is extended.
func (s *single) startPoll(t *testing.T, attr verbs.CQAttr) uintptr {
	t.Helper()
	attr.CQE = 16
	made, err := s.dev.CreateCQ(&attr, nil)
	require.NoError(t, err)
	return view[ibvCQEx](made.(*cq).address).startPoll
}

// That which takes no lock is another one.
func TestTheLibraryKnowsThatACQIsSingleThreaded(t *testing.T) {
	s := openSingle(t)
	require.Zero(t, s.startPoll(t, verbs.CQAttr{}))
	require.NotZero(t, s.startPoll(t, verbs.CQAttr{SingleThreaded: true}))
	locked := s.startPoll(t, verbs.CQAttr{Timestamps: true})
	require.NotZero(t, locked)
	require.NotContains(t, []uintptr{0, locked}, s.startPoll(t, verbs.CQAttr{Timestamps: true, SingleThreaded: true}))
	s.dev.extension.createCQEx = 0
	require.Zero(t, s.startPoll(t, verbs.CQAttr{SingleThreaded: true}))
}

// The library takes the completions of a QP in RESET out of a CQ for which it has no lock.
func TestNobodyPollsWhileAQPIsTakenToReset(t *testing.T) {
	s := openSingle(t)
	s.cq = s.createCQ(t, verbs.CQAttr{Timestamps: true, SingleThreaded: true})
	of := s.createQP(t, true)
	require.NoError(t, of.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	completions := of.Driver().(*qp).sendCQ
	completions.mu.Lock() // as Poll does
	done := make(chan error, 1)
	go func() { done <- of.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState) }()
	assert.Never(t, func() bool {
		attr, err := of.Query()
		return err != nil || attr.State != verbs.QPStateInit
	}, 20*time.Millisecond, time.Millisecond)
	completions.mu.Unlock()
	require.NoError(t, <-done) // ends with the lock
}
