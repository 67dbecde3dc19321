package rnet

import "sync/atomic"

// The states of a waiter. The waiting goroutine moves it from idle to waiting
// and on to parked or asleep; everybody else moves it to ready (wake), and
// the session's leader from parked to led (grant).
const (
	waiterIdle    uint32 = iota
	waiterWaiting        // awake: it looks at the state by itself
	waiterParked         // blocked on ch, or about to be
	waiterAsleep         // leads its session and sleeps on the completion channel
	waiterReady          // what it waits for may be there
	waiterLed            // woken to lead the session
)

// waiter is where one half of a Conn waits. One goroutine at a time waits
// (the half's own lock sees to that); any number may wake it.
type waiter struct {
	state   atomic.Uint32
	granted bool          // written by grant before its token is sent
	ch      chan struct{} // made at the first park; holds the token of one move away from parked
}

// begin comes before the condition is looked at for the last time: no wake
// after it is lost.
func (w *waiter) begin() { w.state.Store(waiterWaiting) }

func (w *waiter) ready() bool { return w.state.Load() == waiterReady }

// wake makes the waiter ready. It reports whether the waiter sleeps on the
// completion channel, in which case the caller must wake that.
func (w *waiter) wake() (asleep bool) {
	if st := w.state.Load(); st == waiterIdle || st == waiterReady {
		return false
	}
	switch w.state.Swap(waiterReady) {
	case waiterParked:
		w.ch <- struct{}{}
	case waiterAsleep:
		return true
	}
	return false
}

// announce declares the waiter parked; block or retract follows. It returns
// false if the waiter is ready.
func (w *waiter) announce() bool {
	if w.ch == nil {
		w.ch = make(chan struct{}, 1)
	}
	return w.state.CompareAndSwap(waiterWaiting, waiterParked)
}

// retract takes an announcement back. A token that is on its way is awaited.
func (w *waiter) retract() {
	if !w.state.CompareAndSwap(waiterParked, waiterWaiting) {
		<-w.ch // ended by the wake that took the state away
	}
}

// block sleeps until the waiter is woken. It reports whether the waiter now
// leads the session.
func (w *waiter) block() (granted bool) {
	<-w.ch // ended by wake (data, credit, deadline, close, peer death) or grant (the leader stops)
	granted, w.granted = w.granted, false
	return granted
}

// blockTraced is block, shown in traces.
func (w *waiter) blockTraced() (granted bool) {
	defer region("rnet.park").End()
	return w.block()
}

// grant hands the lead of the session to a parked waiter.
func (w *waiter) grant() bool {
	if !w.state.CompareAndSwap(waiterParked, waiterLed) {
		return false
	}
	w.granted = true
	w.ch <- struct{}{}
	return true
}
