package wait

import (
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/internal/release"
)

// The states of a Waiter. The waiting goroutine moves it from idle to waiting
// and on to parked or asleep; whoever wakes it moves it to ready.
const (
	waiterIdle    uint32 = iota
	waiterWaiting        // awake: it looks at the state itself
	waiterParked         // blocked on token, or about to be, and registered at the lock
	waiterAsleep         // owns the lock and sleeps on the completion channel
	waiterReady          // what it waits for may be there
)

// Waiter is where one goroutine at a time waits; any number may wake it. The
// zero Waiter is ready to use.
type Waiter struct {
	state atomic.Uint32
	token chan struct{} // made at the first park; holds the token of one move away from parked
}

// Begin comes before the condition is looked at for the last time: no wake
// after it is lost.
func (w *Waiter) Begin() { w.state.Store(waiterWaiting) }

// BeginLocked is Begin for a caller who holds a mutex, and gives it up before it looks: that is the
// fence between the two.
func (w *Waiter) BeginLocked() { release.Store32(&w.state, waiterWaiting) }

// Ready reports whether the Waiter was woken since Begin.
func (w *Waiter) Ready() bool { return w.state.Load() == waiterReady }

// Parked reports whether the Waiter blocks its goroutine now.
func (w *Waiter) Parked() bool { return w.state.Load() == waiterParked }

// Idle reports whether the Waiter was never used.
func (w *Waiter) Idle() bool { return w.state.Load() == waiterIdle }

// wake makes the waiter ready and returns what it was before.
func (w *Waiter) wake() (was uint32) {
	if was = w.state.Load(); was == waiterIdle || was == waiterReady {
		return was
	}
	return w.state.Swap(waiterReady)
}

// wakeSelf is wake by the waiting goroutine itself, which is neither parked nor asleep: at the same
// time others can only make it ready too.
func (w *Waiter) wakeSelf() { release.Store32(&w.state, waiterReady) }

// park declares the waiter parked; block follows. It returns false if the
// waiter is ready.
func (w *Waiter) park() bool {
	if w.token == nil {
		w.token = make(chan struct{}, 1)
	}
	return w.state.CompareAndSwap(waiterWaiting, waiterParked)
}

// block sleeps until the waiter is ready. It is ended by Lock.Wake, whose caller has what the
// waiter waits for.
func (w *Waiter) block() { <-w.token }

// fallAsleep declares the waiter asleep on the completion channel. It returns false if
// the waiter is ready.
func (w *Waiter) fallAsleep() bool { return w.state.CompareAndSwap(waiterWaiting, waiterAsleep) }

// awake takes that back.
func (w *Waiter) awake() { w.state.CompareAndSwap(waiterAsleep, waiterWaiting) }
