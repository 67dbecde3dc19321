package uverbs_test

import (
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/iwarptest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

// siwDevice is the device of the guest, siwAddr its address.
const siwDevice = "siw0"

var siwAddr = netip.MustParseAddr("10.0.2.1")

// siwPort counts up: the kernel's TCP keeps a port for a while.
var siwPort atomic.Uint32

// connectSiw connects two QPs in RESET, the first of which dials.
func connectSiw(a, b *verbs.QP, p rcm.ConnParam) ([2]rcm.Conn, error) {
	addr := netip.AddrPortFrom(siwAddr, uint16(30000+siwPort.Add(1)%10000))
	return iwarptest.Connect(siwDevice, addr, a, b, p)
}

// siwQP is a QP with what it needs.
type siwQP struct {
	*verbs.QP
	cq *verbs.CQ
	ch *verbs.CompChannel
	mr *verbs.MR
}

func newSiwQP(t testing.TB, ctx *verbs.Context) *siwQP {
	t.Helper()
	q := &siwQP{}
	var err error
	q.ch, err = ctx.CreateCompChannel()
	require.NoError(t, err)
	q.cq, err = ctx.CreateCQ(verbs.CQAttr{CQE: 100}, q.ch)
	require.NoError(t, err)
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	q.mr, err = pd.AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	q.QP, err = pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: q.cq, RecvCQ: q.cq,
		Cap: verbs.QPCap{MaxSendWR: 10, MaxRecvWR: 10, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64},
	})
	require.NoError(t, err)
	return q
}

func (q *siwQP) next(t testing.TB) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for deadline := time.Now().Add(20 * time.Second); ; {
		n, err := q.cq.Poll(wc[:])
		require.NoError(t, err)
		if n == 1 {
			return wc[0]
		}
		require.True(t, time.Now().Before(deadline), "no completion")
		time.Sleep(50 * time.Microsecond)
	}
}

// connectedSiw makes two connected QPs on the device.
func connectedSiw(t testing.TB, p rcm.ConnParam) (a, b *siwQP) {
	t.Helper()
	ctx := open(t, siwDevice)
	a, b = newSiwQP(t, ctx), newSiwQP(t, ctx)
	conns, err := connectSiw(a.QP, b.QP, p)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, c := range conns {
			require.NoError(t, c.Disconnect())
		}
	})
	return a, b
}

// siwEnds is rxeEnds on the other device; a has dialed.
func siwEnds(t testing.TB) (a, b *pingpong.End) {
	t.Helper()
	recv := make([]verbs.RecvWR, 1)
	dialed, accepted := connectedSiw(t, rcm.ConnParam{Prepare: func(qp *verbs.QP) error {
		_, err := qp.PostRecv(recv)
		return err
	}})
	ends := [2]*pingpong.End{}
	for i, q := range []*siwQP{dialed, accepted} {
		ends[i] = &pingpong.End{QP: q.QP, CQ: q.cq, Channel: q.ch, MR: q.mr, Recv: recv}
		ends[i].Send = []verbs.SendWR{{ID: pingpong.SendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}
	}
	return ends[0], ends[1]
}

func (q *siwQP) post(t testing.TB, wr verbs.SendWR) {
	t.Helper()
	n, err := q.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestSiwReceivesWithoutMemoryTakeEmptyMessages(t *testing.T) {
	a, b := connectedSiw(t, rcm.ConnParam{Prepare: func(qp *verbs.QP) error {
		_, err := qp.PostRecv([]verbs.RecvWR{{ID: 1}})
		return err
	}})
	for _, s := range []struct{ from, to *siwQP }{{a, b}, {b, a}} { // who dials sends first
		s.from.post(t, verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		sent, received := s.from.next(t), s.to.next(t)
		require.Equal(t, verbs.WC{ID: 2, Opcode: verbs.WCSend, QPN: s.from.Num()}, sent)
		require.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCRecv, QPN: s.to.Num()}, received)
	}
}

func TestSiwReadThatWasNotNegotiatedFailsTheQP(t *testing.T) {
	a, b := connectedSiw(t, rcm.ConnParam{}) // no READs
	read := verbs.SendWR{
		ID: 1, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}
	a.post(t, read)
	wc := a.next(t)
	require.EqualValues(t, 1, wc.ID)
	require.Error(t, wc.Err())
	attr, err := a.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.QPStateErr, attr.State)
	a.post(t, verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
	require.Equal(t, verbs.WC{ID: 2, QPN: a.Num(), Status: verbs.WCWRFlushErr}, a.next(t))
}

func TestSiwQueuesOfOddSizes(t *testing.T) {
	ctx := open(t, siwDevice)
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	for _, c := range []verbs.QPCap{
		{}, {MaxSendWR: 1}, {MaxRecvWR: 1, MaxRecvSGE: 1}, {MaxSendWR: 3, MaxRecvWR: 5, MaxSendSGE: 1, MaxRecvSGE: 6},
		{MaxSendWR: 33, MaxRecvWR: 31, MaxSendSGE: 6, MaxInline: 80}, {MaxSendWR: 32768, MaxRecvWR: 32768, MaxSendSGE: 6, MaxRecvSGE: 6},
	} {
		for _, cqe := range []int{1, 3, 100} {
			cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: cqe}, nil)
			require.NoError(t, err)
			require.GreaterOrEqual(t, cq.Cap(), cqe)
			qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: c})
			require.NoError(t, err, "%+v", c)
			got := qp.Attr().Cap
			require.GreaterOrEqual(t, got.MaxSendWR, c.MaxSendWR)
			require.GreaterOrEqual(t, got.MaxRecvWR, c.MaxRecvWR)
			require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1}, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
			n, err := qp.PostRecv(make([]verbs.RecvWR, got.MaxRecvWR+1))
			require.Equal(t, got.MaxRecvWR, n)
			require.ErrorIs(t, err, verbs.ErrQueueFull)
			require.NoError(t, qp.Close())
			require.NoError(t, cq.Close())
		}
	}
	for _, most := range []int{1, 3, 1000} {
		srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: most, MaxSGE: 1})
		require.NoError(t, err)
		attr, err := srq.Query()
		require.NoError(t, err)
		require.GreaterOrEqual(t, attr.MaxWR, most)
		n, err := srq.PostRecv(make([]verbs.RecvWR, attr.MaxWR+1))
		require.Equal(t, attr.MaxWR, n)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		require.NoError(t, srq.Close())
	}
}

// TestEveryRequestCompletesOnceWhileSiwFails has a QP fail, by itself or by
// its peer, while requests are posted.
func TestEveryRequestCompletesOnceWhileSiwFails(t *testing.T) {
	for round := range 20 {
		t.Run(strconv.Itoa(round), func(t *testing.T) { failWhilePosting(t, 50+10*round, round%2 == 0) })
	}
}

// failWhilePosting has a QP fail after n requests of its own have completed.
func failWhilePosting(t *testing.T, n int, ourselves bool) {
	a, b := connectedSiw(t, rcm.ConnParam{})
	var posted atomic.Uint64 // sum of the ids that were taken
	var taken, stop atomic.Int64
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		write := []verbs.SendWR{{
			Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 1000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
		}}
		recv := make([]verbs.RecvWR, 1)
		for id := uint64(1); stop.Load() == 0; id++ {
			write[0].ID, recv[0].ID = id, id
			if n, _ := a.PostSend(write); n == 1 {
				posted.Add(id)
				taken.Add(1)
			}
			if n, _ := a.PostRecv(recv); n == 1 {
				posted.Add(id)
				taken.Add(1)
			}
		}
	}()
	sum := uint64(0) // of those that completed
	next := func() verbs.WC {
		wc := a.next(t)
		sum += wc.ID
		taken.Add(-1)
		return wc
	}
	for range n {
		wc := next()
		require.NoError(t, wc.Err())
	}
	if ourselves {
		require.NoError(t, a.Fail())
	} else {
		require.NoError(t, b.Fail())
	}
	for flushed := 0; flushed < 30; { // some were posted after the failure
		if next().Status == verbs.WCWRFlushErr {
			flushed++
		}
	}
	stop.Store(1)
	<-done // ends with stop: posts do not wait
	for taken.Load() > 0 {
		next()
	}
	require.Equal(t, posted.Load(), sum)
	var wcs [1]verbs.WC
	n, err := a.cq.Poll(wcs[:])
	require.NoError(t, err)
	require.Zero(t, n, "%+v", wcs)
}

func TestNobodySeesTheCompletionOfAnEmptyWrite(t *testing.T) {
	a, b := connectedSiw(t, rcm.ConnParam{})
	post := a.QP.Driver().(interface{ PostEmptyWrite() }).PostEmptyWrite
	post()
	require.NoError(t, b.Fail())
	write := verbs.SendWR{ID: 7, Opcode: verbs.OpWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
		SGL: []verbs.SGE{a.mr.SGE(0, 8)}, Flags: verbs.SendSignaled}
	for done := false; !done; { // ends when the failure has come here
		post()
		_, err := a.PostSend([]verbs.SendWR{write})
		require.NoError(t, err)
		post()
		wc := a.next(t)
		require.EqualValues(t, 7, wc.ID)
		done = wc.Status == verbs.WCWRFlushErr
	}
	post()
	var wcs [1]verbs.WC
	n, err := a.cq.Poll(wcs[:])
	require.NoError(t, err)
	require.Zero(t, n, "%+v", wcs)
}

// TestSiwSendsShortRequestsOfTwoPages has the thread of the kernel's driver send short
// requests whose memory lies in two pages: it sends what has waited, by a fence, for a
// READ.
func TestSiwSendsShortRequestsOfTwoPages(t *testing.T) {
	a, b := connectedSiw(t, rcm.ConnParam{ResponderResources: 1, InitiatorDepth: 1})
	const page, to, room, reads, read = 4096, 0, 64, 1 << 19, 1 << 18
	for i := range 2 * page {
		a.mr.Bytes()[i] = byte(i ^ i>>8)
	}
	for _, opcode := range []verbs.Opcode{verbs.OpWrite, verbs.OpSend} {
		for _, n := range []int{2, 3, 16, 31, 32, 33} {
			for first := 1; first < n; first += max(1, n/5) {
				clear(b.mr.Bytes()[to:][:room])
				_, err := b.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{b.mr.SGE(to, room)}}})
				require.NoError(t, err)
				wrs := []verbs.SendWR{
					{Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(reads, read)}, RemoteAddr: b.mr.Addr() + reads, RKey: b.mr.RKey()},
					{Opcode: opcode, Flags: verbs.SendSignaled | verbs.SendFence, SGL: []verbs.SGE{a.mr.SGE(page-first, n)}, RemoteAddr: b.mr.Addr() + to, RKey: b.mr.RKey()},
				}
				if opcode == verbs.OpWrite { // which is in b's memory when a message behind it is
					wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
				}
				_, err = a.PostSend(wrs)
				require.NoError(t, err)
				for range wrs {
					require.Equal(t, verbs.WCSuccess, a.next(t).Status)
				}
				require.Equal(t, verbs.WCSuccess, b.next(t).Status)
				require.Equal(t, a.mr.Bytes()[page-first:][:n], b.mr.Bytes()[to:][:n], "%v of %d bytes, %d of them in the first page", opcode, n, first)
			}
		}
	}
}
