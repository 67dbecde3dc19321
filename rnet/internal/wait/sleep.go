package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Sleeps is what is known of sleeps that are over.
type Sleeps struct {
	usual time.Duration // mean length of the last ones
}

// Add learns from a sleep.
func (s *Sleeps) Add(took time.Duration) { s.usual += (min(took, time.Millisecond) - s.usual) / 8 }

// sleeper is what a lock has learned of the sleeps of its owners.
type sleeper struct {
	Sleeps
	parks     int // sleeps that will not be on a thread
	lastParks int // how many these were the last time
	short     int // sleeps on a thread in a row that were short
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
	if !thread && !l.rests {
		return w.Ready()
	}
	others, came := true, 0 // others may be runnable; polls in a row that have brought something
	for !w.Ready() {
		if l.src.Failed() || l.word.load().waiters() > 0 || came > leaveRounds {
			return w.Ready() // traffic that does not end is the engine's
		}
		if thread && others {
			others = false
			l.runOthers(w)
			continue
		}
		if l.armAndPoll() {
			others = true
			came++
			continue
		}
		if !w.fallAsleep() {
			return true
		}
		// Both are ended by an arrival (data, credit) and by Wake (of w: deadline,
		// close; of End); on a thread also by the slice.
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
		w.awake()
		others, came = l.poll() > 0, 0
		if !thread && !l.rests {
			return w.Ready()
		}
	}
	return true
}

// threadSlice is how long an owner sleeps on its thread before it parks. A shorter slice
// would often be the next timer of its CPU, and to set that costs more than the wake-up:
// 18 us in a virtual machine.
const threadSlice = 10 * time.Millisecond

// blockThread sleeps on the thread.
func (l *Lock) blockThread() {
	defer region("rnet.threadwait").End()
	l.ThreadWaits.Add(1)
	l.channel.WaitThread(time.Now().Add(threadSlice))
}

// A sleeping thread keeps its processor of Go, at which the runtime's monitor looks every
// 20 us to begin with; it rests only if all processors are idle. So an owner sleeps on its
// thread only if its sleeps are short, which is learned from all of them: in a sleep of
// milliseconds the monitor costs more than the thread saves.
const threadPays = 200 * time.Microsecond

// Where that processor is the only one, goroutines that become runnable wait for the
// monitor, which takes the processor away after 20 us at best and 10 ms at worst. So with
// one processor the sleeps have to be shorter still. In a process whose own goroutines end
// the sleeps, such as a proxy, they look short, and are long on the thread: so after a long
// one the thread is tried more rarely.
const (
	shortSleep  = 40 * time.Microsecond
	longSleep   = 100 * time.Microsecond
	shortSleeps = 64 // so many short ones on the thread in a row do no harm
	minParks    = 16
	maxParks    = 4096
)

// slept learns from a sleep, and reports whether the next may be on the thread
// without mayBlockThread.
func (sl *sleeper) slept(took time.Duration, thread bool) bool {
	sl.Add(took)
	if procs > 1 {
		return thread && took < time.Millisecond
	}
	switch {
	case !thread:
		return false
	case took < shortSleep:
		if sl.short++; sl.short >= shortSleeps {
			sl.lastParks = 0
		}
		return true
	case took >= longSleep:
		sl.short = 0
		sl.lastParks = min(max(minParks, 2*sl.lastParks), maxParks)
		sl.parks = sl.lastParks
	}
	return false
}

// mayBlockThread reports whether an owner may sleep on its thread, and counts it if so.
// If Go has several processors, one is left for the other goroutines.
func (l *Lock) mayBlockThread() bool {
	if !l.cfg.Thread || l.cfg.Local {
		return false
	}
	if procs > 1 {
		return l.sleeper.EnterThread()
	}
	if l.sleeper.parks > 0 {
		l.sleeper.parks--
		return false
	}
	return l.sleeper.usual < shortSleep && EnterThread()
}

// EnterThread reports whether the next sleep of an event loop may be on its thread, and
// counts it if so: LeaveThread follows. With one processor the length of the sleeps does not
// matter: in gnet's epoll the loop keeps the processor just as long, and the engine that would wake
// it there has to wait for it.
func (s *Sleeps) EnterThread() bool {
	return (procs == 1 || s.usual < threadPays) && EnterThread()
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

// runOthers lets the other goroutines run that are runnable on this processor of Go,
// before a sleep on the thread keeps it from them. It ends when w is ready.
//
// One yield that returns at once does not show that there are none: at every 61st
// decision Go's scheduler takes the head of the global queue, which is the goroutine that
// yields, and passes over this processor's own queue.
func (l *Lock) runOthers(w *Waiter) {
	rounds, quiet := othersRounds, 0
	if procs > 1 {
		rounds = 1 // other processors steal what is runnable here
	}
	for range rounds {
		begin := now()
		runtime.Gosched()
		took := now() - begin
		if l.poll(); w.Ready() {
			return
		}
		if took >= calmYield {
			quiet = 0
		} else if quiet++; quiet == quietYields {
			return
		}
	}
}

const (
	othersRounds = 16
	quietYields  = 2
	// calmYield is the longest that a yield takes if nothing else runs.
	calmYield = 1200 * time.Nanosecond
)
