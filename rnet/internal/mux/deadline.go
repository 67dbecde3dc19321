package mux

import (
	"sync"
	"sync/atomic"
	"time"
)

// deadline is the deadline of one half of a Conn. Most have none, and take no memory for it.
type deadline struct{ timed atomic.Pointer[timedDeadline] }

// timedDeadline is a deadline that was set. Moving it allocates nothing after the first time, and
// does not touch the timer when it moves later, which is what servers do for every request: the
// timer fires early, sees that, and sets itself again.
type timedDeadline struct {
	expired atomic.Bool

	mu      sync.Mutex
	stopped bool
	timer   *time.Timer
	at      time.Duration // on the clock of monotonic; 0: none
	fires   time.Duration // when timer fires; 0: it does not run
}

// stoppedDeadline takes the place of one that is stopped.
var stoppedDeadline = new(timedDeadline)

// half is what a deadline wakes.
type half interface{ wake() }

// farAway stands for all deadlines that nobody will live to see; it can be
// added to the clock.
const farAway = time.Duration(1 << 61)

var clockStart = time.Now()

// monotonic is the time since the process began. It never is 0.
func monotonic() time.Duration { return time.Since(clockStart) + 1 }

// expired reports whether the deadline has passed.
func (d *deadline) expired() bool {
	t := d.timed.Load()
	return t != nil && t.expired.Load()
}

// set moves the deadline of h and reports whether it has passed
// already, in which case the caller wakes the half. Later the timer does.
func (d *deadline) set(t time.Time, h half) (passed bool) {
	for {
		switch timed := d.timed.Load(); {
		case timed == stoppedDeadline:
			return false
		case timed != nil:
			return timed.set(t, h)
		case t.IsZero():
			return false
		}
		d.timed.CompareAndSwap(nil, new(timedDeadline))
	}
}

// stop ends the deadline for good.
func (d *deadline) stop() {
	if timed := d.timed.Swap(stoppedDeadline); timed != nil && timed != stoppedDeadline {
		timed.stop()
	}
}

func (d *timedDeadline) set(t time.Time, h half) (passed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return false
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
	d.setLeft(left, h)
	return false
}

// setAfter is set for a time from now.
func (d *timedDeadline) setAfter(left time.Duration, h half) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.stopped {
		d.setLeft(left, h)
	}
}

// setLeft is setAfter with mu held.
func (d *timedDeadline) setLeft(left time.Duration, h half) {
	d.at = monotonic() + left
	d.expired.Store(false)
	switch {
	case d.timer == nil:
		d.timer = time.AfterFunc(left, func() { d.fire(h) })
	case d.fires == 0 || d.at < d.fires:
		d.timer.Reset(left)
	default:
		return
	}
	d.fires = d.at
}

// fire is what the timer calls.
func (d *timedDeadline) fire(h half) {
	if d.pass() {
		h.wake()
	}
}

// pass reports whether the deadline has passed; if it was moved, the timer is
// set again.
func (d *timedDeadline) pass() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fires = 0
	if d.stopped || d.at == 0 {
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

func (d *timedDeadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
