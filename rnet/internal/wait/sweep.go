package wait

import (
	"sync"
	"sync/atomic"
	"time"
)

// sweep arms the CQs of locks that were left unarmed and not used again. So a loop of
// requests and answers, which polls again within microseconds, need not arm each time.
// The timer runs only while a lock is on the list.
//
// Where it fires it wakes a thread of the runtime, which may then take an event that the running
// thread would have found sooner. So it fires rarely, but where something may have come for which
// nobody waits: where peers of other processes may open streams, and after SweepSoon.
var sweep = sweeper{period: longestSweep, shortest: longestSweep, longest: longestSweep}

// How often the sweep runs. A CQ that nobody polls is armed after one to two periods.
const (
	// longestSweep is the period where no peer may open streams: where nobody waits
	// nothing comes that is urgent. Were it shorter than the pauses between the requests of
	// a client, the timer would wake a thread for each of them, and then the engine. A peer in this
	// process that may open streams calls SweepSoon when it does.
	longestSweep = 256 * time.Millisecond

	// In a process of which a peer of another one may open streams a round that had nothing to arm
	// makes the period of the next four times as long, and one that had takes it back to the shortest.
	shortestSweep = time.Millisecond
	acceptSweep   = 8 * time.Millisecond
)

// SweepTime is when a CQ is armed at the latest that nobody polls, on an idle machine, in a
// process of which a peer of another one may open streams.
const SweepTime = 2 * acceptSweep

type sweeper struct {
	mu     sync.Mutex
	locks  []*Lock
	timer  *time.Timer
	period time.Duration // of the next round

	shortest, longest time.Duration // of any round

	running bool         // round will be called, or runs
	next    atomic.Int64 // when round is called, as now tells it
	often   atomic.Bool  // the one after it comes soon, too
	idle    []*Lock      // list of the present round; its memory is used again by the next
}

// add puts a lock on the list. The caller has set swept.
func (sw *sweeper) add(l *Lock) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.locks = append(sw.locks, l)
	if l.cfg.Accepts && sw.longest != acceptSweep { // from now on
		sw.shortest, sw.longest = shortestSweep, acceptSweep
		sw.period = shortestSweep
		if sw.running && sw.timer.Stop() {
			sw.startLocked()
		}
	}
	if !sw.running {
		sw.startLocked()
	}
}

func (sw *sweeper) startLocked() {
	sw.running = true
	sw.next.Store(int64(now() + sw.period))
	if sw.timer == nil {
		sw.timer = time.AfterFunc(sw.period, sw.round)
		return
	}
	sw.timer.Reset(sw.period)
}

// SweepSoon has the sweep look in a millisecond, and then more and more rarely. It is for who has sent
// something to an end in this process at which nobody may wait for it, or needs that end to take something
// in; and for who waits without a Waiter.
func SweepSoon() { sweep.soon() }

func (sw *sweeper) soon() {
	if sw.often.Load() && sw.next.Load() <= int64(now()+shortestSweep) {
		return
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.period = shortestSweep
	sw.often.Store(true)
	if sw.running && sw.timer.Stop() {
		sw.startLocked()
	}
}

func (sw *sweeper) round() {
	sw.mu.Lock()
	left, idle := sw.locks[:0], sw.idle[:0]
	for _, l := range sw.locks {
		switch l.visit() {
		case visitLater:
			left = append(left, l)
		case visitArm:
			idle = append(idle, l)
		}
	}
	clear(sw.locks[len(left):])
	sw.locks = left
	if sw.period = min(4*sw.period, sw.longest); len(idle) > 0 {
		sw.period = min(sw.period, sw.shortest)
	}
	sw.often.Store(sw.period <= 4*shortestSweep)
	sw.mu.Unlock()
	for _, l := range idle {
		l.leave() // with a note, so it arms
	}
	clear(idle)
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.idle = idle
	sw.running = false
	if len(sw.locks) > 0 {
		sw.startLocked()
	}
}

func (l *Lock) visit() visit {
	for {
		s := l.word.load()
		next, do := s.visited()
		if l.word.swap(s, next) {
			return do
		}
	}
}
