package fallback

import (
	"errors"
	"fmt"
	"time"
)

// ErrTooSlow is what an accelerated dial comes to that is not done when its head
// start is over.
var ErrTooSlow = errors.New("fallback: not set up in time")

// HeadStart is how long a dial waits for an accelerated connection before it takes TCP. It is over
// after its time, unless the peer is at work on the connection or the dial waits in a queue, as it
// would over TCP. Then it goes on, up to patienceFactor times as long. One goroutine uses it.
type HeadStart struct {
	time  time.Duration
	first time.Duration // of it, until GoOn is asked for the first time
	end   time.Time     // over by then in any case; zero: no such time
	timer *time.Timer
	left  int // how often it may go on

	excused int // how often Excuse was called
}

// patienceFactor is how many times as long as its time a head start may be.
const patienceFactor = 10

// NewHeadStart returns one that has not begun. It must be stopped.
func NewHeadStart(d time.Duration) *HeadStart {
	return &HeadStart{time: d, first: d, left: patienceFactor - 1}
}

// Spend takes from the head start what has passed of it before it begins: a dial
// that waits for what another one has begun does not wait for longer than that.
func (h *HeadStart) Spend(d time.Duration) {
	if h.time > 0 && h.timer == nil && d > 0 {
		h.first = max(0, h.time-d)
		h.left -= int(min(d/h.time, patienceFactor))
	}
}

// EndBy bounds the head start, whatever there is to wait for. It comes before the first call of Over.
func (h *HeadStart) EndBy(end time.Time) { h.end = end }

// within returns d, or how long it is until the end if that is less.
func (h *HeadStart) within(d time.Duration) time.Duration {
	if h.end.IsZero() {
		return d
	}
	return min(d, time.Until(h.end))
}

// Over is sent to when it is time to ask GoOn. The head start begins with the
// first call: a dial that finds nothing to wait for needs no timer.
func (h *HeadStart) Over() <-chan time.Time {
	if h.timer == nil {
		h.timer = time.NewTimer(h.within(h.first))
	}
	return h.timer.C
}

// GoOn reports whether the head start goes on, after Over was received from.
// busy says that there is something to wait for.
func (h *HeadStart) GoOn(busy bool) bool {
	again := h.within(h.time)
	if again <= 0 || h.left <= 0 || !busy {
		h.left = 0
		h.timer.Reset(0) // who asks again is told the same
		return false
	}
	h.left--
	h.timer.Reset(again)
	return true
}

// Excuse does not count the time before the next GoOn: the peer was at work all along,
// on what it was asked before. That is done patienceFactor times as often as the head
// start goes on.
func (h *HeadStart) Excuse() {
	if h.left > 0 && h.excused < patienceFactor*patienceFactor {
		h.excused++
		h.left++
	}
}

// Err is what a dial says whose head start is over.
func (h *HeadStart) Err() error {
	return Because(HandshakeTimeout, fmt.Errorf("%w, after a head start of %v", ErrTooSlow, h.time))
}

// Stop frees what the head start holds.
func (h *HeadStart) Stop() {
	if h.timer != nil {
		h.timer.Stop()
	}
}
