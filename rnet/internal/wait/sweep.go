package wait

import (
	"sync"
	"time"
)

// sweep arms the CQs of locks that were left unarmed and not used again. So a loop of
// requests and answers, which polls again within microseconds, need not arm each time.
// The timer runs only while a lock is on the list.
var sweep sweeper

// SweepPeriod is how often the sweep runs. A CQ that nobody polls is armed after one to
// two periods.
const SweepPeriod = time.Millisecond

type sweeper struct {
	mu      sync.Mutex
	locks   []*Lock
	timer   *time.Timer
	running bool    // round will be called, or runs
	idle    []*Lock // list of the present round; its memory is used again by the next
}

// add puts a lock on the list. The caller has set swept.
func (sw *sweeper) add(l *Lock) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.locks = append(sw.locks, l)
	if !sw.running {
		sw.startLocked()
	}
}

func (sw *sweeper) startLocked() {
	sw.running = true
	if sw.timer == nil {
		sw.timer = time.AfterFunc(SweepPeriod, sw.round)
		return
	}
	sw.timer.Reset(SweepPeriod)
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
