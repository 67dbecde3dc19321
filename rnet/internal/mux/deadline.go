package mux

import (
	"sync"
	"sync/atomic"
	"time"
)

// deadline is the deadline of one half of a Conn. Moving it allocates nothing
// after the first time, and does not touch the timer when it moves later,
// which is what servers do for every request: the timer fires early, sees
// that, and sets itself again.
type deadline struct {
	expired atomic.Bool
	use     atomic.Uint32 // deadline*

	mu    sync.Mutex
	timer *time.Timer
	at    time.Duration // on the clock of monotonic; 0: none
	fires time.Duration // when timer fires; 0: it does not run
}

// What has become of a deadline.
const (
	deadlineUnused uint32 = iota
	deadlineUsed
	deadlineStopped
)

// half is what a deadline wakes.
type half interface{ wake() }

// farAway stands for all deadlines that nobody will live to see; it can be
// added to the clock.
const farAway = time.Duration(1 << 61)

var clockStart = time.Now()

// monotonic is the time since the process began. It never is 0.
func monotonic() time.Duration { return time.Since(clockStart) + 1 }

// set moves the deadline of h and reports whether it has passed
// already, in which case the caller wakes the half. Later the timer does.
func (d *deadline) set(t time.Time, h half) (passed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.use.Load() {
	case deadlineStopped:
		return false
	case deadlineUnused:
		if !d.use.CompareAndSwap(deadlineUnused, deadlineUsed) {
			return false // stopped at this moment
		}
	}
	if t.IsZero() {
		d.at = 0
		d.expired.Store(false)
		return false
	}
	left := min(time.Until(t), farAway)
	if left <= 0 {
		d.at = 0
		d.expired.Store(true)
		return true
	}
	d.at = monotonic() + left
	d.expired.Store(false)
	switch {
	case d.timer == nil:
		d.timer = time.AfterFunc(left, func() { d.fire(h) })
	case d.fires == 0 || d.at < d.fires:
		d.timer.Reset(left)
	default:
		return false
	}
	d.fires = d.at
	return false
}

// fire is what the timer calls.
func (d *deadline) fire(h half) {
	if d.pass() {
		h.wake()
	}
}

// pass reports whether the deadline has passed; if it was moved, the timer is
// set again.
func (d *deadline) pass() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fires = 0
	if d.at == 0 || d.use.Load() == deadlineStopped {
		return false
	}
	if left := d.at - monotonic(); left > 0 {
		d.timer.Reset(left)
		d.fires = d.at
		return false
	}
	d.at = 0
	d.expired.Store(true)
	return true
}

// stop ends the deadline for good.
func (d *deadline) stop() {
	if d.use.Swap(deadlineStopped) == deadlineUnused {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}
