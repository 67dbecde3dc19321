package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// sleeper is what a lock has learned of the sleeps of its owners.
type sleeper struct {
	shun  int // sleeps to go not on a thread
	again int // and how many these were last time
	short int // sleeps on a thread in a row that were not long
}

// threadSleeps counts the owners of this process that sleep on a thread.
var threadSleeps atomic.Int32

// sleepFor sleeps, as the owner, until w is ready. It returns false if that is
// not for w to do: others wait too, or the channel is the engine's.
func (l *Lock) sleepFor(w *Waiter) bool {
	if l.word.load().waiters() > 0 {
		return w.Ready()
	}
	if l.settle(w) {
		return true
	}
	if l.word.load().waiters() > 0 {
		return w.Ready()
	}
	thread := l.mayBlockThread()
	if thread {
		defer LeaveThread()
	} else if !l.rests {
		return w.Ready()
	}
	for !w.Ready() {
		if l.src.Failed() || l.word.load().waiters() > 0 {
			return w.Ready()
		}
		if l.armAndPoll() {
			continue
		}
		if !w.doze() {
			return true
		}
		// Either ends with an arrival (data, credit), Wake (of w: deadline,
		// close; of End), and on a thread with the slice.
		if thread {
			thread = l.blockThread()
		} else {
			l.Wakeups.Add(1)
			l.channel.Wait(time.Time{})
		}
		w.rise()
		l.cqArmed = true
		l.src.Poll()
		if !thread && !l.rests {
			return w.Ready()
		}
	}
	return true
}

// threadSlice is how long an owner sleeps on its thread before it parks. A shorter
// one would be a timer that is the next of its CPU, which costs more than the
// wake-up: 18 us in a virtual machine.
const threadSlice = 10 * time.Millisecond

// blockThread sleeps on the thread, and reports whether to do so again.
func (l *Lock) blockThread() bool {
	defer region("rnet.threadwait").End()
	l.ThreadWaits.Add(1)
	begin := now()
	l.channel.WaitThread(time.Now().Add(threadSlice))
	sl, took := &l.sleeper, now()-begin
	switch {
	case took < longSleep:
		if sl.short++; sl.short >= shortSleeps {
			sl.again = 0
		}
		return true
	case procs == 1:
		sl.short = 0
		sl.again = min(max(minShun, 2*sl.again), maxShun)
		sl.shun = sl.again
	}
	return false
}

// The thread has Go's processor with it. Where that is the only one, a sleep that
// was long may have been so because who would have brought it to an end could not
// run, as in a proxy. So the next sleeps are in the network poller, and the more
// the sooner that happens again.
const (
	longSleep   = time.Millisecond
	shortSleeps = 64 // so many on the thread in a row show that they do no harm
	minShun     = 4
	maxShun     = 1024
)

// mayBlockThread reports whether an owner may sleep on its thread, and counts
// it. One processor of Go is left for the others, if there are several.
func (l *Lock) mayBlockThread() bool {
	if !l.cfg.Thread || l.cfg.Local {
		return false
	}
	if l.sleeper.shun > 0 {
		l.sleeper.shun--
		return false
	}
	return EnterThread()
}

// EnterThread reports whether one more owner of a lock may sleep on its thread.
// LeaveThread follows if so.
func EnterThread() bool {
	if threadSleeps.Add(1) <= int32(max(1, procs-1)) {
		return true
	}
	LeaveThread()
	return false
}

// LeaveThread ends what EnterThread has allowed.
func LeaveThread() { threadSleeps.Add(-1) }

// settle runs who else is runnable on this processor of Go, before it is kept
// from them. It reports whether w became ready.
func (l *Lock) settle(w *Waiter) bool {
	rounds := settleRounds
	if procs > 1 {
		rounds = 1 // who has another processor takes the others from us
	}
	for range rounds {
		begin := now()
		runtime.Gosched()
		quiet := now()-begin < calmYield
		l.src.Poll()
		if w.Ready() {
			return true
		}
		if quiet {
			break
		}
	}
	return false
}

const (
	settleRounds = 16
	// calmYield is what a yield takes at most if nobody else runs.
	calmYield = 1200 * time.Nanosecond
)
