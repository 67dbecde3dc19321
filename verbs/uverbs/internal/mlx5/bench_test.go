//go:build amd64 || arm64

package mlx5

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/rounds"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// BenchmarkPost is what requests cost beside the device, with memory in its place.
func BenchmarkPost(b *testing.B) {
	for _, n := range []int{1, 16} {
		q, wrs := writes(b, n)
		b.Run("WQEs of "+strconv.Itoa(n), func(b *testing.B) {
			at := uint32(0)
			median(b, func() {
				if k, _ := q.writeSmall(at, wrs); k != n {
					b.Fatal("they are not small")
				}
				at += uint32(n)
			})
		})
		b.Run("WQEs and doorbell of "+strconv.Itoa(n), func(b *testing.B) {
			q.Reset()
			median(b, func() {
				k, _, err := q.PostSend(wrs)
				if k != n {
					require.NoError(b, err)
				}
				q.send.done.Store(q.send.posted.Load())
			})
		})
	}
}

// writes are WRITEs of 16 bytes inline, of which the last gives a completion.
func writes(b *testing.B, n int) (*qp, []verbs.SendWR) {
	ctx, _ := newContext(b)
	attr := driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 128, MaxInline: 64}, SendCQ: newCQ(b, ctx, 8)}
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 16)}, RemoteAddr: 1 << 40, RKey: 7}
	}
	wrs[n-1].Flags |= verbs.SendSignaled
	return newQP(b, ctx, attr), wrs
}

// BenchmarkPoll is what completions of requests cost beside the device, with memory in its place.
func BenchmarkPoll(b *testing.B) {
	const round = 64
	ctx, _ := newContext(b)
	c := newCQ(b, ctx, round)
	q := newQP(b, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 2 * round, MaxInline: 64}, SendCQ: c})
	var table driver.QPs = one{q}
	wrs := make([]verbs.SendWR, round)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendSignaled | verbs.SendInline, RemoteAddr: 1 << 40, RKey: 7}
	}
	wcs := make([]verbs.WC, 16)
	b.Run("CQEs of 0", func(b *testing.B) {
		median(b, func() {
			if n, _ := c.Poll(wcs, table); n != 0 {
				b.Fatal("a completion of nothing")
			}
		})
	})
	for _, n := range []int{1, 16} {
		b.Run("CQEs of "+strconv.Itoa(n), func(b *testing.B) {
			var times rounds.Times
			for b.Loop() {
				at := q.send.posted.Load()
				if k, _, err := q.PostSend(wrs); k != round {
					b.Fatal(err)
				}
				for i := range uint32(round) {
					device(c, c.next+i, cqeRequest, uint16(at+i), nil)
				}
				begin := time.Now()
				for range round / n {
					if k, _ := c.Poll(wcs[:n], table); k != n {
						b.Fatal("completions were lost")
					}
				}
				times.Add(begin)
			}
			times.Report(b, round/n)
		})
	}
}

func median(b *testing.B, call func()) {
	rounds.Median(b, func(calls int) {
		for range calls {
			call()
		}
	}, nil)
}
