package wait

import (
	"errors"
	"os"
	"time"
)

// Engine is what Run does beside its main work.
type Engine struct {
	// Period is how often Tick is called.
	Period time.Duration
	Tick   func()
	// LoopEvent is called for each event. It reports whether an event loop has the
	// lock for good, and was told of the event, and whether the engine is to rest then.
	LoopEvent func() (told, rest bool)
}

// Run is the engine, a goroutine that serves the lock while nobody has it: at an event
// it takes the lock and polls. It returns after End.
//
// It waits at the completion channel, or it rests: then a waiter that owns the lock may
// sleep at the channel in its place. It rests when there is never more than one waiter,
// which would otherwise be woken by way of the engine. An owner that leaves the lock armed
// calls the engine back.
func (l *Lock) Run(e *Engine) {
	rests := true
	next := time.Now().Add(e.Period)
	var timer *time.Timer // while it rests; made for the first rest
	for {
		if rests {
			if timer == nil {
				timer = time.NewTimer(time.Until(next))
				defer timer.Stop()
			} else {
				timer.Reset(time.Until(next))
			}
			// Ended by CallEngine (by leave), End, the period.
			select {
			case <-l.call:
				rests = false
			case <-l.over:
				return
			case <-timer.C:
				next = time.Now().Add(e.Period)
				e.Tick()
			}
			continue
		}
		// Ended by an arrival while the CQ is armed, Wake (by End, and by an owner
		// that leaves in the middle of traffic), the period.
		err := l.channel.Wait(next)
		select {
		case <-l.over:
			return
		default:
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			next = time.Now().Add(e.Period)
			e.Tick()
			continue
		}
		l.Wakeups.Add(1)
		told, rest := e.LoopEvent()
		if !told && l.enterOrNote() {
			rest = l.serve()
		}
		rests = rest
	}
}

// serve polls while there is traffic, and gives the lock up. It reports whether
// the engine is to rest.
func (l *Lock) serve() (rest bool) {
	defer region("rnet.engine").End()
	if l.word.load().waiters() > 1 {
		l.lone = 0
	} else {
		l.lone++
	}
	waited := l.word.load().waiters() == 1
	sp := l.engineSpin()
	for {
		if l.poll() > 0 {
			sp.hit()
		}
		if waited && l.lone >= loneEvents && l.word.load().waiters() == 0 {
			l.policy.batches.forget() // nobody polls in that wait
			l.rests = true            // before leave: it may call
			l.leave()
			return true
		}
		if l.src.Failed() || !sp.on() {
			break
		}
	}
	l.word.note()
	l.leave()
	return false
}

// loneEvents is how many events in a row must have been for a single waiter before the
// engine rests.
const loneEvents = 2
