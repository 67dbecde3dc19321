package verbs

import (
	"strconv"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/internal/rounds"
)

// takesAll is a device that does nothing.
type takesAll struct{ QPDriver }

func (takesAll) PostSend(wrs []SendWR) (int, error) { return len(wrs), nil }

// finds is a queue in which there are always so many completions.
type finds struct {
	CQDriver
	n int
}

func (f finds) Poll([]WC) (int, error) { return f.n, nil }

// BenchmarkPostWithoutADevice is what package verbs adds to a post: the checks of each request.
func BenchmarkPostWithoutADevice(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			ctx := &Context{attr: DeviceAttr{Caps: ^Cap(0)}}
			qp := &QP{ctx: ctx, drv: takesAll{}, attr: QPInitAttr{Cap: QPCap{MaxInline: 64}}, plain: plainOperations(QPTypeRC, ctx.attr.Caps)}
			wrs := make([]SendWR, n)
			for i := range wrs {
				wrs[i] = SendWR{Opcode: OpWrite, Flags: SendInline, Inline: [][]byte{make([]byte, 16)}}
			}
			rounds.Median(b, func(calls int) {
				for range calls {
					if k, _ := qp.PostSend(wrs); k != n {
						b.Fatal("a request was refused")
					}
				}
			}, nil)
		})
	}
}

// BenchmarkPollWithoutADevice is what package verbs adds to a poll: the look for a tracer.
func BenchmarkPollWithoutADevice(b *testing.B) {
	for _, n := range []int{0, 1, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			cq := &CQ{ctx: new(Context), drv: finds{n: n}}
			wcs := make([]WC, 16)
			rounds.Median(b, func(calls int) {
				for range calls {
					if k, _ := cq.Poll(wcs); k != n {
						b.Fatal("other completions")
					}
				}
			}, nil)
		})
	}
}
