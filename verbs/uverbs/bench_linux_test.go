package uverbs

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/rounds"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// takesAll is a queue that writes nothing.
type takesAll struct{ driver.DoorbellQP }

func (takesAll) PostSend(wrs []verbs.SendWR) (int, bool, error) { return len(wrs), false, nil }

// BenchmarkPostWithoutADriver is what the core of this package adds to a post: a lock, the state,
// and the counting of those that give a completion.
func BenchmarkPostWithoutADriver(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { postWithoutADriver(b, n, false) })
		b.Run(strconv.Itoa(n)+" single-threaded", func(b *testing.B) { postWithoutADriver(b, n, true) })
	}
}

func postWithoutADriver(b *testing.B, n int, singleThreaded bool) {
	d, _ := recordingDevice(b)
	queue := takesAll{}
	q := &qp{dev: d, sendLimit: 128, ownDoorbell: queue}
	q.state.Store(uint32(verbs.QPStateRTS))
	q.send.queue = queue
	if singleThreaded {
		q.send.Promise()
	}
	wrs := make([]verbs.SendWR, n)
	wrs[n-1].Flags = verbs.SendSignaled
	rounds.Median(b, func(calls int) {
		for range calls {
			k, err := q.PostSend(wrs)
			if k != n {
				require.NoError(b, err)
			}
		}
	}, func() { q.sendDone.Store(q.send.posted) })
}

// finds is a queue in which there are always so many completions.
type finds struct {
	driver.CQ
	n int
}

func (f finds) Poll([]verbs.WC, driver.QPs) (int, error) { return f.n, nil }

// BenchmarkPollWithoutADriver is what the core of this package adds to a poll: a lock, the look
// whether there is anything but the queue, and the QP of each completion, which counts it.
func BenchmarkPollWithoutADriver(b *testing.B) {
	for _, n := range []int{0, 1, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { pollWithoutADriver(b, n, false) })
		b.Run(strconv.Itoa(n)+" single-threaded", func(b *testing.B) { pollWithoutADriver(b, n, true) })
	}
}

func pollWithoutADriver(b *testing.B, n int, singleThreaded bool) {
	d, _ := recordingDevice(b)
	q := &qp{dev: d, num: 17}
	c := &cq{dev: d, queue: finds{n: n}, size: 128, qps: map[uint32]*qp{q.num: q}}
	if singleThreaded {
		c.mu.Promise()
	}
	wcs := make([]verbs.WC, 16)
	for i := range wcs {
		wcs[i] = verbs.WC{QPN: q.num, Opcode: verbs.WCWrite}
	}
	rounds.Median(b, func(calls int) {
		for range calls {
			k, err := c.Poll(wcs)
			if k != n {
				require.NoError(b, err)
			}
		}
	}, nil)
}
