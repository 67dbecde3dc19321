package rnet

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

	mu      sync.Mutex
	at      time.Time   // guarded by mu; zero: none
	timer   *time.Timer // guarded by mu
	fires   time.Time   // when timer fires, zero: it is stopped; guarded by mu
	stopped bool        // guarded by mu
}

// set moves the deadline of c's half and reports whether it has passed
// already, in which case the caller wakes the half. Later the timer does.
func (d *deadline) set(t time.Time, c *Conn) (passed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return false
	}
	d.at = t
	if t.IsZero() {
		d.expired.Store(false)
		return false
	}
	left := time.Until(t)
	if left <= 0 {
		d.expired.Store(true)
		return true
	}
	d.expired.Store(false)
	switch {
	case d.timer == nil:
		d.timer = time.AfterFunc(left, func() { d.fire(c) })
	case d.fires.IsZero() || t.Before(d.fires):
		d.timer.Reset(left)
	default:
		return false
	}
	d.fires = t
	return false
}

func (d *deadline) fire(c *Conn) {
	d.mu.Lock()
	d.fires = time.Time{}
	if d.stopped || d.at.IsZero() || d.expired.Load() {
		d.mu.Unlock()
		return
	}
	if left := time.Until(d.at); left > 0 {
		d.timer.Reset(left)
		d.fires = d.at
		d.mu.Unlock()
		return
	}
	d.expired.Store(true)
	d.mu.Unlock()
	if d == &c.recvEnd {
		c.wakeReader()
	} else {
		c.wakeWriter()
	}
}

// stop ends the deadline for good.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
