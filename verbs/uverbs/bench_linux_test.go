package uverbs

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// takesAll is a queue that writes nothing.
type takesAll struct{ driver.DoorbellQP }

func (takesAll) PostSend(wrs []verbs.SendWR) (int, bool, error) { return len(wrs), false, nil }

// BenchmarkPostWithoutADriver is what the core of this package adds to a post: a lock, the state, and the counting of
// those that give a completion.
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
	const calls = 64
	var rounds []time.Duration
	for b.Loop() {
		begin := time.Now()
		for range calls {
			k, err := q.PostSend(wrs)
			if k != n {
				require.NoError(b, err)
			}
		}
		rounds = append(rounds, time.Since(begin))
		q.sendDone.Store(q.send.posted)
	}
	slices.Sort(rounds)
	b.ReportMetric(float64(rounds[len(rounds)/2])/calls, "ns/op") // whatever else the machine did
}
