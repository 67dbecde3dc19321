//go:build linux

package soft_test

import (
	"fmt"
	"runtime"
	"sort"
	"strconv"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/rounds"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

var deep = shape{
	cap:    verbs.QPCap{MaxSendWR: 1024, MaxRecvWR: 1024, MaxSendSGE: 4, MaxRecvSGE: 1, MaxInline: 1 << 20},
	memory: 4 << 20, cqe: 4096,
}

// warm sends until the pair is joined and the key is known.
func warm(t testing.TB, a, b *end) {
	t.Helper()
	_, err := b.qp.PostRecv(make([]verbs.RecvWR, 1))
	require.NoError(t, err)
	_, err = a.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: [][]byte{{1}}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}})
	require.NoError(t, err)
	poll(t, b.recv, 1)
}

// BenchmarkPostWrite is a WRITE of 16 bytes inline, and sixteen with one call, of which the last gives
// a completion: what package verbs and the device take together.
func BenchmarkPostWrite(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			x, y := newPair(b, deep)
			warm(b, x, y)
			wrs := writes(y, n)
			wrs[n-1].Flags |= verbs.SendSignaled
			var posted int
			rounds.Median(b, func(calls int) {
				for range calls {
					if k, err := x.qp.PostSend(wrs); k != n {
						b.Fatal(err)
					}
				}
				posted = calls
			}, func() { poll(b, x.send, posted) })
		})
	}
}

// BenchmarkPollSent is a poll for completions of such WRITEs.
func BenchmarkPollSent(b *testing.B) {
	const round = 64
	for _, n := range []int{0, 1, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			x, y := newPair(b, deep)
			warm(b, x, y)
			wrs, wcs := writes(y, round), make([]verbs.WC, 16)
			for i := range wrs {
				wrs[i].Flags |= verbs.SendSignaled
			}
			calls := round / max(n, 1)
			var times rounds.Times
			for b.Loop() {
				if n > 0 {
					if k, err := x.qp.PostSend(wrs); k != round {
						b.Fatal(err)
					}
				}
				begin := time.Now()
				for range calls {
					if k, _ := x.send.Poll(wcs[:max(n, 1)]); k != n {
						b.Fatal(k)
					}
				}
				times.Add(begin)
			}
			times.Report(b, calls)
		})
	}
}

// writes are WRITEs of 16 bytes inline to the memory of an end.
func writes(to *end, n int) []verbs.SendWR {
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 16)}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
	}
	return wrs
}

// BenchmarkPostWriteImm is a frame header and a small payload, unsignaled.
// Polling and reposting are in the time of the Poll and PostRecv benchmarks.
func BenchmarkPostWriteImm(b *testing.B) {
	x, y := newPair(b, deep)
	warm(b, x, y)
	recvs := make([]verbs.RecvWR, 512)
	wcs := make([]verbs.WC, 512)
	header, payload := make([]byte, 16), make([]byte, 64)
	inline := [][]byte{header, payload}
	wr := []verbs.SendWR{{Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: inline, RKey: y.mr.RKey()}}
	addr, span := y.mr.Addr(), uint64(256<<10)
	b.ReportAllocs()
	b.ResetTimer()
	off := uint64(0)
	for done := 0; done < b.N; {
		batch := min(b.N-done, len(recvs))
		b.StopTimer()
		if _, err := y.qp.PostRecv(recvs[:batch]); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		for range batch {
			wr[0].RemoteAddr = addr + off
			off = (off + 128) % span
			if n, err := x.qp.PostSend(wr); n != 1 {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		for got := 0; got < batch; {
			n, err := y.recv.Poll(wcs)
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
		b.StartTimer()
		done += batch
	}
}

// BenchmarkPostBatch is the same cost for each of sixteen WRITEs that a SendBatch
// builds and posts together.
func BenchmarkPostBatch(b *testing.B) {
	x, y := newPair(b, deep)
	warm(b, x, y)
	batch := x.qp.NewSendBatch(16)
	sge, key, addr := x.mr.SGE(0, 64), y.mr.RKey(), y.mr.Addr()
	b.ReportAllocs()
	for b.Loop() {
		batch.Start()
		for range 16 {
			batch.Write(key, addr)
			batch.SetSGE(sge)
		}
		if n, err := batch.Complete(); n != 16 {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/16, "ns/request")
}

func BenchmarkPollEmpty(b *testing.B) {
	x, y := newPair(b, deep)
	warm(b, x, y)
	wcs := make([]verbs.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, _ := y.recv.Poll(wcs); n != 0 {
			b.Fatal(n)
		}
	}
}

func BenchmarkPostRecv(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			benchReceive(b, batch, true)
		})
	}
}

func BenchmarkPoll(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			benchReceive(b, batch, false)
		})
	}
}

// benchReceive times posting receives or polling completions, per receive.
func benchReceive(b *testing.B, batch int, posting bool) {
	x, y := newPair(b, deep)
	warm(b, x, y)
	const round = 512
	recvs := make([]verbs.RecvWR, batch)
	wcs := make([]verbs.WC, batch)
	wrs := make([]verbs.SendWR, round)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline}
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.StopTimer()
	for done := 0; done < b.N; done += round {
		if posting {
			b.StartTimer()
		}
		for i := 0; i < round; i += batch {
			if _, err := y.qp.PostRecv(recvs); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		if n, err := x.qp.PostSend(wrs); n != round {
			b.Fatal(n, err)
		}
		if !posting {
			b.StartTimer()
		}
		for got := 0; got < round; {
			n, err := y.recv.Poll(wcs)
			if err != nil || n == 0 {
				b.Fatal(n, err)
			}
			got += n
		}
		b.StopTimer()
	}
}

// BenchmarkWrite1MiB copies in pieces that a reader could follow.
func BenchmarkWrite1MiB(b *testing.B) {
	x, y := newPair(b, deep)
	warm(b, x, y)
	const piece, pieces = 16 << 10, 64
	data := make([]byte, piece*pieces)
	wrs := make([]verbs.SendWR, pieces)
	for i := range wrs {
		wrs[i] = verbs.SendWR{
			Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{data[i*piece:][:piece]},
			RemoteAddr: y.mr.Addr() + uint64(i*piece), RKey: y.mr.RKey(),
		}
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := x.qp.PostSend(wrs); n != pieces {
			b.Fatal(err)
		}
	}
}

func BenchmarkCopy1MiB(b *testing.B) {
	src, dst := make([]byte, 1<<20), make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	for b.Loop() {
		for i := 0; i < len(src); i += 16 << 10 {
			copy(dst[i:i+16<<10], src[i:])
		}
	}
}

// BenchmarkRoundTrip is 64 bytes there and back between two processes, both
// polling. On a busy machine look at the quantiles, of the mean over ten
// trips: the mean of all has the time in which only one of the two ran.
func BenchmarkRoundTrip(b *testing.B) { benchRoundTrip(b, "echo", spinFor) }

// BenchmarkSleepingRoundTrip is the same with both ends asleep between the
// messages.
func BenchmarkSleepingRoundTrip(b *testing.B) {
	b.Run("parked", func(b *testing.B) {
		benchRoundTrip(b, "echo-parked", sleepFor((*verbs.CompChannel).Wait))
	})
	b.Run("thread", func(b *testing.B) {
		benchRoundTrip(b, "echo-thread", sleepFor((*verbs.CompChannel).WaitThread))
	})
}

func benchRoundTrip(b *testing.B, role string, next func(*end, []verbs.WC) (int, error)) {
	e := newEnd(b, usual)
	startChild(b, role, e)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	recvs := make([]verbs.RecvWR, 32)
	_, err := e.qp.PostRecv(recvs)
	require.NoError(b, err)
	wcs := make([]verbs.WC, 16)
	wr := []verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 64)},
		RemoteAddr: e.peer.Addr, RKey: e.peer.RKey,
	}}
	trip := func() {
		if n, err := e.qp.PostSend(wr); n != 1 {
			b.Fatal(err)
		}
		if n, err := next(e, wcs); n != 1 || wcs[0].Status != verbs.WCSuccess {
			b.Fatal(n, err, wcs[0].Status)
		}
		if n, err := e.qp.PostRecv(recvs[:1]); n != 1 {
			b.Fatal(err)
		}
	}
	for range 1000 {
		trip()
	}
	b.ReportAllocs()
	const tens = 10
	var took []float64
	began := time.Now()
	for i := 0; b.Loop(); i++ {
		trip()
		if i%tens == tens-1 {
			now := time.Now()
			took = append(took, float64(now.Sub(began))/tens)
			began = now
		}
	}
	if sort.Float64s(took); len(took) > 0 {
		b.ReportMetric(took[len(took)/10], "p10-ns")
		b.ReportMetric(took[len(took)/2], "p50-ns")
	}
}

// BenchmarkPairing makes two QPs, connects them, moves a message and destroys
// them.
func BenchmarkPairing(b *testing.B) {
	run := func(b *testing.B) {
		x, y := newEnd(b, usual), newEnd(b, usual)
		for b.Loop() {
			for _, e := range []*end{x, y} {
				require.NoError(b, e.qp.Close())
				var err error
				e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
				require.NoError(b, err)
			}
			forY, err := x.address()
			require.NoError(b, err)
			forX, err := y.address()
			require.NoError(b, err)
			require.NoError(b, x.connect(forX))
			require.NoError(b, y.connect(forY))
			warm(b, x, y)
		}
	}
	b.Run("in one process", run)
	b.Run("between strangers", func(b *testing.B) {
		soft.PairAsStrangers(b)
		run(b)
	})
}
