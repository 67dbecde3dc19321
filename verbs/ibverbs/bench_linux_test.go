//go:build amd64 || arm64

package ibverbs_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// loop is a QP that is connected with itself, of the device of a provider.
type loop struct {
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
	wcs [64]verbs.WC
}

func newLoop(t testing.TB, provider string) *loop {
	t.Helper()
	t.Setenv(verbs.ProvidersVar, provider)
	list, err := verbs.Devices()
	require.NoError(t, err)
	if len(list) == 0 {
		t.Skip("there is no RDMA device")
	}
	ctx, err := verbs.Open(list[0].Name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	if got := ctx.Attr().Provider; got != provider {
		t.Skipf("%s serves the device", got)
	}
	return loopOn(t, ctx, nil)
}

func loopOn(t testing.TB, ctx *verbs.Context, ch *verbs.CompChannel) *loop {
	t.Helper()
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	l := new(loop)
	l.cq, err = ctx.CreateCQ(verbs.CQAttr{CQE: 256}, ch)
	require.NoError(t, err)
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	l.mr, err = pd.AllocMR(4096, access, verbs.MROptions{})
	require.NoError(t, err)
	l.qp, err = pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: l.cq, RecvCQ: l.cq,
		Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
	require.NoError(t, err)
	gids, err := ctx.QueryGIDs(1)
	require.NoError(t, err)
	own, isRoCE := rdmahost.PreferredGID(gids, netip.Addr{})
	if !isRoCE {
		own = gids[0]
	}
	av := verbs.AddressVector{DGID: own.GID, SGIDIndex: uint8(own.Index), HopLimit: 64, IsGlobal: true, Port: 1}
	require.NoError(t, l.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	require.NoError(t, l.qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: l.qp.Num(), MaxDestRdAtomic: 1, MinRNRTimer: 1, AV: av,
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer))
	require.NoError(t, l.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic))
	return l
}

// writes are n WRITEs of 16 inline bytes, of which the last gives a completion.
func (l *loop) writes(n int) []verbs.SendWR {
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = verbs.SendWR{
			Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 16)}, RemoteAddr: l.mr.Addr(), RKey: l.mr.RKey(),
		}
	}
	wrs[n-1].Flags |= verbs.SendSignaled
	return wrs
}

// drain polls n completions.
func (l *loop) drain(t testing.TB, n int) {
	for n > 0 {
		k, err := l.cq.Poll(l.wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.wcs[:k] {
			if l.wcs[i].Status != verbs.WCSuccess {
				t.Fatal(l.wcs[i].Err())
			}
		}
		n -= k
	}
}

func TestPostAndPollAllocateNothing(t *testing.T) {
	l := newLoop(t, ibverbs.ProviderName)
	wrs := l.writes(3)
	recv := []verbs.RecvWR{{SGL: []verbs.SGE{l.mr.SGE(0, 64)}}}
	imm := []verbs.SendWR{{Opcode: verbs.OpSendWithImm, Imm: 7, SGL: []verbs.SGE{l.mr.SGE(64, 64)}, Flags: verbs.SendSignaled}}
	require.Zero(t, testing.AllocsPerRun(200, func() {
		_, err1 := l.qp.PostSend(wrs)
		_, err2 := l.qp.PostRecv(recv)
		_, err3 := l.qp.PostSend(imm)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
		l.drain(t, 3)
	}))
}

// What a request takes of this process. The device works beside it.
func BenchmarkPost(b *testing.B) {
	eachProvider(b, func(b *testing.B, l *loop) {
		wrs := l.writes(1)
		for i := 0; i < b.N; i++ {
			if _, err := l.qp.PostSend(wrs); err != nil {
				b.Fatal(err)
			}
			if i%len(l.wcs) == len(l.wcs)-1 {
				b.StopTimer()
				l.drain(b, len(l.wcs))
				b.StartTimer()
			}
		}
	})
}

// Sixteen requests with each call.
func BenchmarkPostOfSixteen(b *testing.B) {
	eachProvider(b, func(b *testing.B, l *loop) {
		wrs := l.writes(16)
		posted := 0
		for i := 0; i < b.N; i++ {
			if _, err := l.qp.PostSend(wrs); err != nil {
				b.Fatal(err)
			}
			if posted++; posted == 4 {
				b.StopTimer()
				l.drain(b, posted)
				posted = 0
				b.StartTimer()
			}
		}
	})
}

func BenchmarkPollOfAnEmptyQueue(b *testing.B) {
	eachProvider(b, func(b *testing.B, l *loop) {
		for b.Loop() {
			if _, err := l.cq.Poll(l.wcs[:]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// eachProvider runs f on a device of this provider, and on the same of package uverbs.
func eachProvider(b *testing.B, f func(*testing.B, *loop)) {
	for _, provider := range []string{ibverbs.ProviderName, uverbs.ProviderName} {
		b.Run(provider, func(b *testing.B) {
			l := newLoop(b, provider)
			b.ReportAllocs()
			b.ResetTimer()
			f(b, l)
		})
	}
}
