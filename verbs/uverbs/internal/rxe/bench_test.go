package rxe

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/rounds"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// BenchmarkPost is what requests cost in the ring that the kernel reads, without the doorbell,
// which is a system call.
func BenchmarkPost(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run("WQEs of "+strconv.Itoa(n), func(b *testing.B) {
			const depth = 128
			k := new(kernel)
			out := createQPOut{send: k.queue(4096, 8, 9), recv: k.queue(1<<20, 3, 7)}
			q, err := k.openQP(driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: 1}}, out)
			require.NoError(b, err)
			send := k.maps[4096]
			wrs := make([]verbs.SendWR, n) // WRITEs of 16 bytes inline
			for i := range wrs {
				wrs[i] = verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 16)}, RemoteAddr: 1 << 40, RKey: 7}
			}
			const calls = depth / 16
			var times rounds.Times
			for b.Loop() {
				begin := time.Now()
				for range calls {
					if k, doorbell, err := q.PostSend(wrs); k != n || !doorbell {
						b.Fatal(err)
					}
				}
				times.Add(begin)
				// all is done
				*abi.ViewAt[uint32](send, offsetConsumer) = *abi.ViewAt[uint32](send, offsetProducer)
			}
			times.Report(b, calls)
		})
	}
}

// BenchmarkPoll is what completions cost in the ring that the kernel writes.
func BenchmarkPoll(b *testing.B) {
	const round = 64
	c, _, mem := newCQ(b, 7)
	wcs := make([]verbs.WC, 16)
	for _, n := range []int{0, 1, 16} {
		b.Run("completions of "+strconv.Itoa(n), func(b *testing.B) {
			calls := round / max(n, 1)
			var times rounds.Times
			for b.Loop() {
				for i := range n * calls {
					complete(mem, abi.WC{WRID: uint64(i), QPNum: 17})
				}
				begin := time.Now()
				for range calls {
					if k, _ := c.Poll(wcs[:max(n, 1)], nil); k != n {
						b.Fatal("completions were lost")
					}
				}
				times.Add(begin)
			}
			times.Report(b, calls)
		})
	}
}
