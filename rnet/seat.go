package rnet

import (
	"os"
	"sync/atomic"
	"time"
)

// seat is the place in which one goroutine at a time sleeps on the completion
// channel of a session on a wire. It is the engine's, and the engine sits there
// whenever the CQ is armed for it. But a lone reader that the engine has to wake
// costs two wake-ups for each arrival, often of two threads. So when one was
// alone for aloneWaits waits, the engine gives it the lead and gets up; from
// then on leaders sleep in the seat, until the CQ is armed for the engine
// again, which calls it back.
//
// The seat changes hands under lead: free is set by the engine that is about to
// give the lead away, and cleared by the leader that calls it. So no leader is
// in the seat when the engine is called, for a leader has the lead while it
// sits there, and none takes it before the engine has got up.
type seat struct {
	free  bool // the engine is not in it; guarded by lead
	alone int  // leaders in a row that would have slept, and nobody waited but them; guarded by lead

	// wanted asks the engine to get up if it finds a lone waiter.
	wanted atomic.Bool
	call   chan struct{} // has the token of one call
	over   chan struct{} // closed when the session fails
	timer  *time.Timer   // of the engine while it waits for a call, made for the first one
}

// aloneWaits is after how many waits the one who waits is thought to go on to
// be the only one: giving up the seat, and calling the engine back, cost about as
// much as one wait.
const aloneWaits = 4

func (st *seat) init() {
	st.call, st.over = make(chan struct{}, 1), make(chan struct{})
}

// mayTakeSeat reports whether the leader may sleep on the completion channel.
// If it may not for the time being, it will ask the engine.
func (s *session) mayTakeSeat() bool {
	if s.seat.free {
		return true
	}
	if s.seat.alone++; s.seat.alone >= aloneWaits {
		s.seat.alone = 0
		s.seat.wanted.Store(true)
	}
	return false
}

// callEngine has the engine take its seat: the CQ was armed for it. The caller
// leads.
func (s *session) callEngine() {
	if s.seat.free {
		s.seat.free = false
		s.seat.call <- struct{}{} // never blocks: the engine takes the token before it frees the seat again
	}
}

// awaitCall is where the engine is while leaders have its seat.
func (s *session) awaitCall(until time.Time) error {
	if s.seat.timer == nil {
		s.seat.timer = time.NewTimer(time.Until(until))
	} else {
		s.seat.timer.Reset(time.Until(until))
	}
	defer s.seat.timer.Stop()
	// Ended by: callEngine, failure of the session, the keepalive period.
	select {
	case <-s.seat.call:
	case <-s.seat.over:
	case <-s.seat.timer.C:
		return os.ErrDeadlineExceeded
	}
	return nil
}
