package harness

import (
	"fmt"
	"sync"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

const (
	longestLatency = time.Minute // longer ones are recorded as this
	latencyDigits  = 3           // significant decimal digits kept
	ownRecorders   = 64          // connections that get a histogram (200 KiB) each
)

func newHistogram() *hdr.Histogram {
	return hdr.New(1, int64(longestLatency), latencyDigits)
}

// recorder takes the latencies of one connection, or of several when there
// are so many that a histogram for each would fill the caches. Its memory is
// all there from the start; record allocates nothing.
type recorder struct {
	shared bool // several goroutines record: take mu
	mu     sync.Mutex
	h      *hdr.Histogram // guarded by mu if shared
}

// newRecorders returns a recorder for each of n connections.
func newRecorders(n int) []*recorder {
	recorders := make([]*recorder, n)
	for i := range recorders {
		if i < ownRecorders {
			recorders[i] = &recorder{shared: n > ownRecorders, h: newHistogram()}
		} else {
			recorders[i] = recorders[i%ownRecorders]
		}
	}
	return recorders
}

func (r *recorder) record(d time.Duration) {
	d = min(max(d, 0), longestLatency)
	if !r.shared {
		r.h.RecordValue(int64(d)) // in range, cannot fail
		return
	}
	r.mu.Lock()
	r.h.RecordValue(int64(d))
	r.mu.Unlock()
}

// resetRecorders forgets what was recorded, for instance while warming up.
func resetRecorders(recorders []*recorder) {
	for _, r := range recorders[:min(len(recorders), ownRecorders)] {
		r.h.Reset()
	}
}

// mergeRecorders adds up what the recorders hold, in a form for the pipe. It
// must not run beside record.
func mergeRecorders(recorders []*recorder) ([]byte, error) {
	sum := newHistogram()
	for _, r := range recorders[:min(len(recorders), ownRecorders)] {
		if dropped := sum.Merge(r.h); dropped != 0 {
			return nil, fmt.Errorf("merge histograms: %d values out of range", dropped)
		}
	}
	return sum.Encode(hdr.V2CompressedEncodingCookieBase)
}

func decodeLatency(encoded []byte) (*hdr.Histogram, error) {
	h, err := hdr.Decode(encoded)
	if err != nil {
		return nil, fmt.Errorf("decode histogram: %w", err)
	}
	return h, nil
}
