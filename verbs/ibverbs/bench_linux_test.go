//go:build amd64 || arm64

package ibverbs_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
	return loopOn(t, openWith(t, provider), nil)
}

// openWith opens the first device, with a provider.
func openWith(t testing.TB, provider string) *verbs.Context {
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
	return ctx
}

func loopOn(t testing.TB, ctx *verbs.Context, ch *verbs.CompChannel) *loop {
	t.Helper()
	return loopWith(t, ctx, verbs.CQAttr{CQE: 256}, ch)
}

func loopWith(t testing.TB, ctx *verbs.Context, cqAttr verbs.CQAttr, ch *verbs.CompChannel) *loop {
	t.Helper()
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	l := new(loop)
	l.cq, err = ctx.CreateCQ(cqAttr, ch)
	require.NoError(t, err)
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessMWBind
	l.mr, err = pd.AllocMR(4096, access, verbs.MROptions{})
	require.NoError(t, err)
	l.qp, err = pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: l.cq, RecvCQ: l.cq, SingleThreaded: cqAttr.SingleThreaded,
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
	l.allocateNothing(t)
	ctx := l.qp.PD().Context()
	attrs := []verbs.CQAttr{{SingleThreaded: true}}
	if ctx.Attr().Caps.Has(verbs.CapTimestamps) {
		attrs = append(attrs, verbs.CQAttr{Timestamps: true}, verbs.CQAttr{Timestamps: true, SingleThreaded: true})
	}
	for _, attr := range attrs {
		attr.CQE = 256
		loopWith(t, ctx, attr, nil).allocateNothing(t)
	}
}

func (l *loop) allocateNothing(t *testing.T) {
	t.Helper()
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

// What requests and completions take of a process: over each provider, and in C (testdata/cost.c).
// The device works beside it. A round is 64 requests, completions or calls, and the figure is the
// median of the rounds.
func BenchmarkPost(b *testing.B) { measure(b, "post", posts(b, 1)) }

// Sixteen requests with each call.
func BenchmarkPostOfSixteen(b *testing.B) { measure(b, "sixteen", posts(b, 16)) }

// posts are rounds of calls with so many requests.
func posts(b *testing.B, requests int) func(*loop) float64 {
	return func(l *loop) float64 {
		wrs, calls := l.writes(requests), len(l.wcs)/requests
		took := l.post(b, wrs, calls)
		l.drain(b, calls)
		return took / float64(calls)
	}
}

// post returns the time of the calls in nanoseconds.
func (l *loop) post(t testing.TB, wrs []verbs.SendWR, calls int) float64 {
	begin := time.Now()
	for range calls {
		if _, err := l.qp.PostSend(wrs); err != nil {
			t.Fatal(err)
		}
	}
	return float64(time.Since(begin))
}

// A completion of 64 that one call finds.
func BenchmarkPollOfCompletions(b *testing.B) {
	measure(b, "found", func(l *loop) float64 {
		l.post(b, l.writes(1), len(l.wcs))
		// until the device has done them; else the round does not count
		time.Sleep(time.Millisecond)
		begin := time.Now()
		n, err := l.cq.Poll(l.wcs[:])
		took := time.Since(begin)
		require.NoError(b, err)
		l.drain(b, len(l.wcs)-n)
		if n < len(l.wcs) {
			return 0
		}
		return float64(took) / float64(n)
	})
}

func BenchmarkPollOfAnEmptyQueue(b *testing.B) {
	measure(b, "empty", func(l *loop) float64 {
		begin := time.Now()
		for range l.wcs {
			if _, err := l.cq.Poll(l.wcs[:]); err != nil {
				b.Fatal(err)
			}
		}
		return float64(time.Since(begin)) / float64(len(l.wcs))
	})
}

// measure runs rounds, which return nanoseconds or 0, on a device of this provider and on the same
// of package uverbs, and those of the program in C that have a name; all with locks, and
// where calls are promised not to overlap.
func measure(b *testing.B, measurement string, round func(*loop) float64) {
	for _, over := range []struct {
		name, provider string
		single         bool
	}{
		{"ibverbs", ibverbs.ProviderName, false},
		{"ibverbs single-threaded", ibverbs.ProviderName, true},
		{"uverbs", uverbs.ProviderName, false},
		{"uverbs single-threaded", uverbs.ProviderName, true},
	} {
		b.Run(over.name, func(b *testing.B) {
			l := loopWith(b, openWith(b, over.provider), verbs.CQAttr{CQE: 256, SingleThreaded: over.single}, nil)
			var rounds []float64
			for b.Loop() {
				rounds = append(rounds, round(l))
			}
			reportMedian(b, rounds)
		})
	}
	b.Run("C", func(b *testing.B) { measureC(b, measurement, strconv.Itoa(b.N)) })
	b.Run("C single-threaded", func(b *testing.B) { measureC(b, measurement, strconv.Itoa(b.N), "yes") })
}

func measureC(b *testing.B, arguments ...string) {
	out, err := exec.Command(compileCost(b), arguments...).Output()
	require.NoError(b, err)
	var rounds []float64
	for _, line := range strings.Fields(string(out)) {
		ns, err := strconv.ParseFloat(line, 64)
		require.NoError(b, err)
		rounds = append(rounds, ns)
	}
	reportMedian(b, rounds)
}

func reportMedian(b *testing.B, rounds []float64) {
	rounds = slices.DeleteFunc(rounds, func(ns float64) bool { return ns == 0 })
	slices.Sort(rounds)
	median := 0.0
	if len(rounds) > 0 {
		median = rounds[len(rounds)/2]
	}
	b.ReportMetric(median, "ns/op")
	if len(rounds) > 0 {
		b.ReportMetric(rounds[0], "least-ns")
	}
}

// compileCost compiles testdata/cost.c as distributions compile programs.
func compileCost(t testing.TB) (program string) {
	t.Helper()
	// where Debian's libibverbs-dev was unpacked, if it is not installed
	root := os.Getenv("RAMJET_MODEL_ROOT")
	libraries, err := filepath.Glob(filepath.Join(root, "/usr/lib/*/libibverbs.so"))
	require.NoError(t, err)
	if _, err := exec.LookPath("gcc"); err != nil || len(libraries) == 0 {
		t.Skipf("gcc (%v) and libibverbs-dev are not both there", err)
	}
	program = filepath.Join(t.TempDir(), "cost")
	out, err := exec.Command("gcc", "-O2", "-Wall", "-I", filepath.Join(root, "/usr/include"), "-o", program, "testdata/cost.c",
		"-L", filepath.Dir(libraries[0]), "-libverbs", "-Wl,--allow-shlib-undefined").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}
