package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// sleeper is what a lock has learned of the sleeps of its owners.
type sleeper struct {
	usual time.Duration // of a sleep, a mean of the last few
	shun  int           // sleeps to go not on a thread
	again int           // and how many these were last time
	short int           // sleeps on a thread in a row that were short
}

// threadSleeps counts the owners of this process that sleep on a thread.
var threadSleeps atomic.Int32

// sleepFor sleeps, as the owner, until w is ready. It returns false if that is
// not for w to do: others wait too, or the channel is the engine's.
func (l *Lock) sleepFor(w *Waiter) bool {
	if l.word.load().waiters() > 0 {
		return w.Ready()
	}
	thread := l.mayBlockThread()
	defer func() {
		if thread {
			LeaveThread()
		}
	}()
	if thread {
		if l.settle(w) {
			return true
		}
		if l.word.load().waiters() > 0 {
			return w.Ready()
		}
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
		begin := now()
		if thread {
			l.blockThread()
		} else {
			l.Wakeups.Add(1)
			l.channel.Wait(time.Time{})
		}
		if short := l.sleeper.slept(now()-begin, thread); thread && !short {
			LeaveThread() // for others, while this one parks
			thread = false
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

// blockThread sleeps on the thread.
func (l *Lock) blockThread() {
	defer region("rnet.threadwait").End()
	l.ThreadWaits.Add(1)
	l.channel.WaitThread(time.Now().Add(threadSlice))
}

// The thread has Go's processor with it. Where that is the only one, whatever else
// becomes runnable waits for the runtime's monitor, which comes after 20 us at best
// and 10 ms at worst. So sleeps are on the thread there only if they are short, and
// end before anybody could have come to harm. Whether they would be is learned from
// all sleeps. A process whose sleeps are ended by what it does itself, such as a
// proxy, looks as if they would be, and is told by those on the thread, which are
// long then: so these are tried less and less.
const (
	shortSleep  = 40 * time.Microsecond
	longSleep   = 100 * time.Microsecond
	shortSleeps = 64 // so many on the thread in a row show that they do no harm
	minShun     = 16
	maxShun     = 4096
)

// slept learns from a sleep, and reports whether the next may be on the thread
// without another look around.
func (sl *sleeper) slept(took time.Duration, thread bool) bool {
	if procs > 1 {
		return thread && took < time.Millisecond
	}
	sl.usual += (min(took, time.Millisecond) - sl.usual) / 8
	switch {
	case !thread:
		return false
	case took < shortSleep:
		if sl.short++; sl.short >= shortSleeps {
			sl.again = 0
		}
		return true
	case took >= longSleep:
		sl.short = 0
		sl.again = min(max(minShun, 2*sl.again), maxShun)
		sl.shun = sl.again
	}
	return false
}

// mayBlockThread reports whether an owner may sleep on its thread, and counts
// it. One processor of Go is left for the others, if there are several.
func (l *Lock) mayBlockThread() bool {
	if !l.cfg.Thread || l.cfg.Local {
		return false
	}
	if procs == 1 {
		if l.sleeper.shun > 0 {
			l.sleeper.shun--
			return false
		}
		if l.sleeper.usual >= shortSleep {
			return false
		}
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
//
// One yield that comes back at once does not show that there is nobody: at each
// 61st decision Go takes who has waited longest in the queue of all processors,
// which is the one that yields, past those in the queue of this one.
func (l *Lock) settle(w *Waiter) bool {
	rounds, quiet := settleRounds, 0
	if procs > 1 {
		rounds = 1 // who has another processor takes the others from us
	}
	for range rounds {
		begin := now()
		runtime.Gosched()
		took := now() - begin
		l.src.Poll()
		if w.Ready() {
			return true
		}
		if took >= calmYield {
			quiet = 0
		} else if quiet++; quiet == quietYields {
			break
		}
	}
	return false
}

const (
	settleRounds = 16
	quietYields  = 2
	// calmYield is what a yield takes at most if nobody else runs.
	calmYield = 1200 * time.Nanosecond
)
