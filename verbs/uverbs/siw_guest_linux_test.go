package uverbs_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/verbstest"
)

// siwDevice is the device of the guest, siwAddr its address.
const siwDevice = "siw0"

var siwAddr = netip.MustParseAddr("10.0.2.1")

// siwPort counts up: the kernel's TCP keeps a port for a while.
var siwPort atomic.Uint32

// connectSiw connects two QPs in RESET, the first of which dials. iWARP QPs
// are connected by the kernel's connection manager only.
func connectSiw(a, b *verbs.QP, p rcm.ConnParam) (conns [2]rcm.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	addr := netip.AddrPortFrom(siwAddr, uint16(20000+siwPort.Add(1)%10000))
	ln, err := rcm.KernelOn(siwDevice).Listen(addr, rcm.ListenConfig{})
	if err != nil {
		return conns, err
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() { // ends with ctx
		req, err := ln.Accept(ctx)
		if err == nil {
			conns[1], err = req.Accept(ctx, b, p)
		}
		accepted <- err
	}()
	route, err := rcm.KernelOn(siwDevice).Resolve(ctx, addr)
	if err == nil {
		conns[0], err = route.Connect(ctx, a, p)
	}
	if err != nil {
		cancel()
	}
	if acceptErr := <-accepted; err == nil { // ends with ctx
		err = acceptErr
	}
	return conns, err
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

func TestSiwSendsBothWays(t *testing.T) {
	ctx := open(t, siwDevice)
	t.Logf("%+v", ctx.Attr())
	a, b := newSiwQP(t, ctx), newSiwQP(t, ctx)
	conns, err := connectSiw(a.QP, b.QP, rcm.ConnParam{Prepare: func(qp *verbs.QP) error {
		_, err := qp.PostRecv([]verbs.RecvWR{{ID: 1}})
		return err
	}})
	require.NoError(t, err)
	_ = conns
	for _, q := range []*siwQP{a, b} {
		n, err := q.PostSend([]verbs.SendWR{{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		wc := q.next(t)
		require.NoError(t, wc.Err())
		t.Logf("%+v", wc)
	}
	wc := a.next(t)
	t.Logf("%+v", wc)
	wc = b.next(t)
	t.Logf("%+v", wc)
}

// allowPinning lifts RLIMIT_MEMLOCK, which siw applies to root too.
func allowPinning(t testing.TB) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)) })
}

func TestConformanceOfSiw(t *testing.T) {
	requireDevice(t, siwDevice)
	allowPinning(t)
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		return verbstest.Pair{A: open(t, siwDevice), B: open(t, siwDevice), Connect: func(a, b *verbs.QP) error {
			conns, err := connectSiw(a, b, rcm.ConnParam{
				ResponderResources: 16, InitiatorDepth: 16,
				Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite,
			})
			t.Cleanup(func() {
				for _, c := range conns {
					if c != nil {
						require.NoError(t, c.Disconnect())
					}
				}
			})
			return err
		}}
	})
}
