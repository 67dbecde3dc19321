package wait

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The model: goroutines that wait for messages, the engine, the sweep and the
// peer, around a poll lock whose word takes the same steps as that of a Lock. Each
// access to what they share is a step of its own, and every order of the steps is
// tried. What the peer publishes it looks at the CQ's arming for afterwards, as a
// provider does (verbs/soft has a model of that).
const modelWaiters = 2

type world struct {
	fault

	// The lock, and what its owner knows.
	word    word
	cqArmed bool
	rests   bool

	// The provider.
	arms     bool    // the CQ is armed
	event    bool    // an event is at the completion channel
	wakeChan bool    // Wake: for who is at the channel
	wakeThr  bool    // and for who sleeps on a thread
	inbox    [3]int8 // published: for whom, plus 1
	inboxLen int8

	waiters [modelWaiters]modelWaiter
	engine  modelEngine
	sweep   modelSweep
	poller  modelPoller
	shares  bool // owners may hand the lock over to the shared poller
	busy    bool // which has so much to do that it leaves the lock only if it is told to
	onSweep bool
	unarmed bool // an owner who had been left a note has left without arming
	called  bool
	flying  [modelWaiters]bool // a wake has made the waiter ready, and goes on to withdraw it

	script  [3]int8 // whom the peer still writes to, plus 1
	peer    int8    // its program counter: 0 publish, 1 look, 2 wake
	timer   int8    // wakes of the first waiter by its deadline that may come
	looks   int8    // calls of Do that may come
	looker  leaver
	soon    int8 // program counter of LookSoon, 0: it is over
	patient bool // the peer publishes after LookSoon only

	fails  bool // the session may fail
	failed bool
	end    int8 // steps of End that are done
	over   bool
	free   bool
	closed bool
}

type modelWaiter struct {
	pc     int8
	state  uint32
	token  bool
	want   int8 // messages
	got    int8 // delivered and not taken
	park   bool
	offers bool // it hands the lock over if it parks
	leaver
}

type modelEngine struct {
	pc     int8
	waited bool
	rest   bool
	leaver
}

type modelSweep struct {
	leaver
}

// modelPoller is the shared poller. The start and the end of its goroutine are not modelled.
type modelPoller struct {
	owns bool
	leaver
}

// leaver is the state of a call of leave.
type leaver struct {
	lpc   int8
	s     word
	how   departure
	noted bool // it has taken a note
}

// The program counters of leave, 0: it is not called.
const (
	lLoad int8 = 1 + iota
	lClearNote
	lFailed
	lArm
	lPoll
	lCall
	lLoadAgain
	lSwap
)

// The program counters of waiters.
const (
	wBegin int8 = iota
	wEnter
	wPark
	wBlock
	wPoll
	wChoose
	wArmChan
	wPollChan
	wAsleepChan
	wSleepChan
	wArmThread
	wPollThread
	wAsleepThread
	wSleepThread
	wRegister
	wLeaveBlock
	wLeave
	wDone
)

// The program counters of the engine.
const (
	eRest int8 = iota
	eWait
	eEnter
	ePoll
	eLeave
	eClose
	eAwaitFree
	eGone
)

// fault is a deliberate mistake, to show that it would be found.
type fault struct {
	noPollInLeave bool // leave arms, and does not poll again
	noPollAsleep  bool // an owner arms, and sleeps without polling again
	noNote        bool // the engine does not note an event that it could not follow
	ignoreNote    bool // a note does not keep the owner from leaving
	forgetNote    bool // the owner takes the note, and leaves unarmed after a poll that brings something
	noCount       bool // nor does a waiter
	noSweep       bool // nobody sweeps
	noCall        bool // the engine is not called from its rest
	noRestCheck   bool // an owner goes to the channel although the engine is there
	drop          bool // Do gives the lock up without leave
	lateEnd       bool // End wakes the engine before there is anything for it to see
	noWakeSoon    bool // LookSoon does not wake the owner
	neverAsks     bool // nor does it ask a shared poller for the lock
	dropOffer     bool // the shared poller gives the lock up without leave
	noFree        bool // the owner of a source that failed does not tell Close
}

var errLost = errors.New("lost wake-up")

func (w *world) final() error {
	if w.failed {
		if !w.closed {
			return errors.New("the engine could not close the lock")
		}
		return nil
	}
	for i := range w.waiters {
		if w.waiters[i].pc != wDone {
			return fmt.Errorf("%w: waiter %d stands at %d", errLost, i, w.waiters[i].pc)
		}
	}
	if w.soon != sOver {
		return errors.New("LookSoon does not get the lock")
	}
	if w.inboxLen > 0 {
		return errors.New("nobody takes in what arrived")
	}
	return nil
}

// valid is what holds in each state: neither a parked waiter need wait for the sweep, nor who has left a
// note.
func (w *world) valid() error {
	if w.unarmed {
		return errors.New("a note was taken, and the completion queue not armed")
	}
	if w.word.waiters() > modelWaiters+1 {
		return errors.New("a waiter was withdrawn that had not registered")
	}
	for i := range w.waiters {
		if !w.word.has(owned|armed) && w.waiters[i].state == waiterParked && !w.failed {
			return fmt.Errorf("waiter %d is parked, and nobody listens", i)
		}
	}
	return nil
}

// wake is the first step of Lock.Wake.
func (w *world) wake(i int) {
	m := &w.waiters[i]
	was := m.state
	if was == waiterIdle || was == waiterReady {
		return
	}
	m.state = waiterReady
	switch was {
	case waiterParked:
		w.flying[i] = true
	case waiterAsleep:
		w.wakeChan, w.wakeThr = true, true
	}
}

// poll delivers all that was published.
func (w *world) poll() (n int) {
	for ; w.inboxLen > 0; n++ {
		i := int(w.inbox[0]) - 1
		copy(w.inbox[:], w.inbox[1:])
		w.inboxLen--
		w.inbox[w.inboxLen] = 0
		w.waiters[i].got++
		w.wake(i)
	}
	return n
}

// took is what comes after a step into the lock.
func (w *world) took() {
	if w.cqArmed {
		w.arms, w.cqArmed = false, false
	}
}

func (w *world) steps() (list []step) {
	add := func(name string, do func(w *world)) { list = append(list, step{name, do}) }
	for i := range w.waiters {
		w.waiterSteps(i, add)
		if w.flying[i] {
			add(fmt.Sprintf("waiter %d is withdrawn and gets its token", i), func(w *world) {
				w.flying[i] = false
				w.word -= oneWaiter
				w.waiters[i].token = true
			})
		}
	}
	w.engineSteps(add)
	w.sweepSteps(add)
	w.pollerSteps(add)
	w.otherSteps(add)
	return list
}

func (w *world) waiterSteps(i int, add func(string, func(w *world))) {
	m := &w.waiters[i]
	if m.lpc != 0 {
		w.leaveSteps(fmt.Sprintf("waiter %d", i), func(w *world) *leaver { return &w.waiters[i].leaver }, func(w *world) {
			m := &w.waiters[i]
			switch {
			case m.pc == wLeaveBlock && m.park:
				m.pc = wBlock
			default:
				m.pc = wBegin
			}
		}, add)
		return
	}
	do := func(what string, f func(w *world, m *modelWaiter)) {
		add(fmt.Sprintf("waiter %d %s", i, what), func(w *world) { f(w, &w.waiters[i]) })
	}
	ready := func(m *modelWaiter) bool { return m.state == waiterReady }
	switch m.pc {
	case wBegin:
		do("begins, and looks for what it waits for", func(w *world, m *modelWaiter) {
			m.state, m.park, m.offers = waiterWaiting, false, false
			switch {
			case m.got > 0:
				m.got--
				if m.want--; m.want == 0 {
					m.pc, m.state = wDone, waiterIdle
				}
			case w.failed:
				m.pc, m.state = wDone, waiterIdle
			default:
				m.pc = wEnter
			}
		})
	case wEnter:
		do("enters", func(w *world, m *modelWaiter) {
			if ready(m) {
				m.pc = wBegin
				return
			}
			next, owns := w.word.entered()
			w.word = next
			if owns {
				w.took()
				m.pc = wPoll
			} else {
				m.pc = wPark
			}
		})
	case wPark:
		do("parks", func(w *world, m *modelWaiter) {
			if ready(m) {
				w.word -= oneWaiter
				m.pc = wBegin
				return
			}
			m.state, m.pc = waiterParked, wBlock
		})
	case wBlock:
		if m.token {
			do("goes on", func(w *world, m *modelWaiter) { m.token, m.pc = false, wBegin })
		}
	case wPoll:
		do("polls", func(w *world, m *modelWaiter) {
			w.poll()
			if m.pc = wChoose; ready(m) || w.failed {
				m.pc = wLeave
			}
		})
	case wChoose:
		if w.shares {
			do("is to hand the lock over", func(w *world, m *modelWaiter) { m.pc, m.offers = wRegister, true })
		}
		if w.word.waiters() > 0 {
			do("leaves the waiting to the engine", func(w *world, m *modelWaiter) { m.pc = wRegister })
			return
		}
		do("is to sleep on its thread", func(w *world, m *modelWaiter) { m.pc = wArmThread })
		if w.rests || w.noRestCheck {
			do("is to sleep at the channel", func(w *world, m *modelWaiter) { m.pc = wArmChan })
		} else {
			do("finds the engine at the channel", func(w *world, m *modelWaiter) { m.pc = wRegister })
		}
	case wArmChan, wArmThread:
		do("arms", func(w *world, m *modelWaiter) {
			w.arms, w.cqArmed = true, true
			m.pc++
		})
	case wPollChan, wPollThread:
		do("polls again", func(w *world, m *modelWaiter) {
			n := 0
			if !w.noPollAsleep {
				n = w.poll()
			}
			switch {
			case ready(m):
				m.pc = wLeave
			case n > 0:
				m.pc = wChoose
			default:
				m.pc++
			}
		})
	case wAsleepChan, wAsleepThread:
		do("declares itself asleep", func(w *world, m *modelWaiter) {
			if w.failed || ready(m) {
				m.pc = wLeave
				return
			}
			m.state = waiterAsleep
			m.pc++
		})
	case wSleepChan:
		if w.event || w.wakeChan {
			do("wakes at the channel", func(w *world, m *modelWaiter) {
				w.event, w.wakeChan = false, false
				m.wokeUp()
			})
		}
	case wSleepThread:
		if !w.arms || w.wakeThr {
			do("wakes on its thread", func(w *world, m *modelWaiter) {
				w.wakeThr = false
				m.wokeUp()
			})
		}
	case wRegister:
		do("registers", func(w *world, m *modelWaiter) {
			w.word += oneWaiter
			m.pc = wLeaveBlock
		})
	case wLeaveBlock:
		do("parks, and leaves or hands over", func(w *world, m *modelWaiter) {
			if m.park = !ready(m); m.park {
				m.state = waiterParked
			} else {
				w.word -= oneWaiter
			}
			if m.park && m.offers {
				w.poller.owns, m.pc = true, wBlock
				return
			}
			m.lpc = lLoad
		})
	case wLeave:
		do("leaves", func(w *world, m *modelWaiter) { m.lpc = lLoad })
	}
}

func (m *modelWaiter) wokeUp() {
	if m.state == waiterAsleep {
		m.state = waiterWaiting
	}
	m.pc = wPoll
}

// leaveSteps are those of leave.
func (w *world) leaveSteps(who string, of func(w *world) *leaver, left func(w *world), add func(string, func(w *world))) {
	do := func(what string, f func(w *world, l *leaver)) {
		add(who+" "+what, func(w *world) { f(w, of(w)) })
	}
	swap := func(w *world, l *leaver, next word) bool {
		if w.word != l.s {
			l.lpc = lLoad
			return false
		}
		w.word = next
		return true
	}
	switch of(w).lpc {
	case lLoad:
		do("looks how to leave", func(w *world, l *leaver) {
			l.s = w.word
			s := l.s
			if w.noCount {
				s &= oneWaiter - 1
			}
			if l.how = s.departing(); l.noted && !w.forgetNote {
				l.how = departArmed
			}
			if l.lpc = lFailed; s.has(noted) {
				l.lpc = lClearNote
			}
		})
	case lClearNote:
		do("takes the note", func(w *world, l *leaver) {
			if swap(w, l, l.s&^noted) {
				l.lpc, l.noted = lFailed, true
			}
		})
	case lFailed:
		do("looks whether the source has failed", func(w *world, l *leaver) {
			switch {
			case w.failed:
				w.word &^= owned | noted
				w.free = !w.noFree
				*l = leaver{}
				left(w)
			case l.how == departArmed:
				l.lpc = lArm
			default:
				if w.cqArmed {
					w.arms, w.cqArmed = false, false
				}
				l.s = l.s &^ noted
				l.lpc = lSwap
			}
		})
	case lArm:
		do("arms to leave", func(w *world, l *leaver) {
			w.arms, w.cqArmed = true, true
			l.lpc = lPoll
		})
	case lPoll:
		do("polls to leave", func(w *world, l *leaver) {
			if l.lpc = lCall; !w.noPollInLeave && w.poll() > 0 {
				l.lpc = lLoad
			}
		})
	case lCall:
		do("calls the engine if it rests", func(w *world, l *leaver) {
			if w.rests && !w.noCall {
				w.rests, w.called = false, true
			}
			l.lpc = lLoadAgain
		})
	case lLoadAgain:
		do("looks again", func(w *world, l *leaver) { l.s, l.lpc = w.word, lSwap })
	case lSwap:
		do("gives up the lock", func(w *world, l *leaver) {
			s := l.s
			if w.ignoreNote {
				s &^= noted
			}
			if w.noCount {
				s &= oneWaiter - 1
			}
			next, ok := s.left(l.how)
			if w.noCount {
				next |= l.s &^ (oneWaiter - 1)
			}
			if !ok {
				l.lpc = lLoad
				return
			}
			if swap(w, l, next) {
				w.unarmed = l.noted && l.how == departFree
				if l.how == departFree && !l.s.has(swept) {
					w.onSweep = !w.noSweep
				}
				*l = leaver{}
				left(w)
			}
		})
	}
}

func (w *world) engineSteps(add func(string, func(w *world))) {
	e := &w.engine
	if e.lpc != 0 {
		w.leaveSteps("engine", func(w *world) *leaver { return &w.engine.leaver }, func(w *world) {
			if w.engine.pc = eWait; w.engine.rest {
				w.engine.pc = eRest
			}
			w.engine.rest = false
		}, add)
		return
	}
	do := func(what string, f func(w *world, e *modelEngine)) {
		add("engine "+what, func(w *world) { f(w, &w.engine) })
	}
	switch e.pc {
	case eRest:
		if w.called {
			do("is called", func(w *world, e *modelEngine) { w.called, e.pc = false, eWait })
		}
		if w.over {
			do("ends its rest", func(w *world, e *modelEngine) { e.pc = eClose })
		}
	case eWait:
		if w.event || w.wakeChan {
			do("wakes", func(w *world, e *modelEngine) {
				w.event, w.wakeChan = false, false
				if e.pc = eEnter; w.over {
					e.pc = eClose
				}
			})
		}
	case eEnter:
		do("enters", func(w *world, e *modelEngine) {
			next, owns := w.word.enterOrNote()
			if !owns && w.noNote {
				next = w.word
			}
			w.word = next
			if e.pc = eWait; owns {
				w.took()
				e.waited = w.word.waiters() == 1
				e.pc = ePoll
			}
		})
	case ePoll:
		do("polls", func(w *world, e *modelEngine) {
			w.poll()
			e.pc = eLeave
		})
	case eLeave:
		do("leaves", func(w *world, e *modelEngine) {
			w.word |= noted
			e.waited, e.lpc = false, lLoad
		})
		polled := *w
		if polled.poll(); polled != *w { // otherwise it brings nothing
			do("polls again", func(w *world, _ *modelEngine) { w.poll() })
		}
		if e.waited && w.word.waiters() == 0 {
			do("leaves to rest", func(w *world, e *modelEngine) {
				w.rests, e.rest = true, true
				e.waited, e.lpc = false, lLoad
			})
		}
	case eClose:
		do("closes the lock", func(w *world, e *modelEngine) {
			next, owns := w.word.enterOrNote()
			w.word = next
			if e.pc = eAwaitFree; owns {
				e.pc, w.closed = eGone, true
				for i := range w.waiters { // they are told of the end
					w.wake(i)
				}
			}
		})
	case eAwaitFree:
		if w.free {
			do("is told that the lock is free", func(w *world, e *modelEngine) { w.free, e.pc = false, eClose })
		}
	}
}

func (w *world) sweepSteps(add func(string, func(w *world))) {
	if w.sweep.lpc != 0 {
		w.leaveSteps("sweep", func(w *world) *leaver { return &w.sweep.leaver }, func(*world) {}, add)
		return
	}
	if !w.onSweep {
		return
	}
	add("sweep visits", func(w *world) {
		next, do := w.word.visited()
		w.word = next
		w.onSweep = do == visitLater
		if do == visitArm {
			w.sweep.lpc = lLoad
		}
	})
}

// pollerSteps are those of the shared poller. It may leave the lock at any time.
func (w *world) pollerSteps(add func(string, func(w *world))) {
	if w.poller.lpc != 0 {
		w.leaveSteps("poller", func(w *world) *leaver { return &w.poller.leaver }, func(*world) {}, add)
		return
	}
	if !w.poller.owns {
		return
	}
	polled := *w
	if polled.poll(); polled != *w { // otherwise it brings nothing
		add("poller polls", func(w *world) { w.poll() })
	}
	if w.busy && !w.word.has(noted|asked) {
		return
	}
	add("poller leaves", func(w *world) {
		w.poller.owns = false
		if w.dropOffer {
			w.word &^= owned
			return
		}
		w.word |= noted
		w.poller.lpc = lLoad
	})
}

// otherSteps are those of the peer, of a deadline, of Do, and of the end.
func (w *world) otherSteps(add func(string, func(w *world))) {
	switch {
	case w.peer == 0 && w.script[0] != 0 && (w.soon == sOver || !w.patient):
		add(fmt.Sprintf("peer publishes for waiter %d", w.script[0]-1), func(w *world) {
			w.inbox[w.inboxLen] = w.script[0]
			w.inboxLen++
			copy(w.script[:], append(w.script[1:len(w.script):len(w.script)], 0))
			w.peer = 1
		})
	case w.peer == 1:
		add("peer looks whether the CQ is armed", func(w *world) {
			if w.peer = 0; w.arms {
				w.arms, w.peer = false, 2
			}
		})
	case w.peer == 2:
		add("peer wakes", func(w *world) { w.event, w.peer = true, 0 })
	}
	if w.timer > 0 {
		add("deadline of waiter 0", func(w *world) { w.timer--; w.wake(0) })
	}
	if w.looker.lpc != 0 {
		w.leaveSteps("Do", func(w *world) *leaver { return &w.looker }, func(w *world) {
			if w.soon == sLeave {
				w.soon = sOver
			}
		}, add)
	} else if w.looks > 0 {
		add("Do", func(w *world) {
			w.looks--
			next, owns := w.word.entered()
			if !owns {
				return
			}
			wasArmed := w.word.has(armed)
			w.word = next
			w.took()
			w.poll()
			if w.drop {
				w.word &^= owned
				return
			}
			if wasArmed {
				w.word |= noted
			}
			w.looker.lpc = lLoad
		})
	}
	w.soonSteps(add)
	if w.fails {
		switch w.end {
		case 0:
			add("the source fails", func(w *world) { w.failed, w.end = true, 1 })
		case 1:
			add("End tells the engine", func(w *world) {
				if w.end = 2; w.lateEnd {
					w.wakeChan, w.wakeThr = true, true
					return
				}
				w.over = true
			})
		case 2:
			add("End wakes who sleeps", func(w *world) {
				if w.end = 3; w.lateEnd {
					w.over = true
					return
				}
				w.wakeChan, w.wakeThr = true, true
			})
		}
	}
}

// The program counters of LookSoon.
const (
	sOver int8 = iota
	sEnter
	sWake
	sTakeOver
	sPoll
	sLeave
)

func (w *world) soonSteps(add func(string, func(w *world))) {
	switch w.soon {
	case sEnter:
		add("LookSoon enters", func(w *world) {
			next, owns := w.word.entered()
			w.word = next
			if w.soon = sWake; owns {
				w.took()
				w.soon = sPoll
			}
		})
	case sWake:
		add("LookSoon wakes the owner", func(w *world) {
			if w.soon = sTakeOver; !w.noWakeSoon {
				w.wakeChan, w.wakeThr = true, true
			}
		})
	case sTakeOver:
		if next, owns := w.word.takenOver(); owns {
			add("LookSoon takes over", func(w *world) {
				w.word = next
				w.took()
				w.soon = sPoll
			})
		} else if !w.word.has(asked) && !w.neverAsks {
			add("LookSoon asks for the lock", func(w *world) { w.word |= asked })
		}
		if w.failed {
			add("LookSoon gives up", func(w *world) {
				w.word -= oneWaiter
				w.word &^= asked
				w.soon = sOver
			})
		}
	case sPoll:
		add("LookSoon polls", func(w *world) {
			w.poll()
			w.word |= noted
			w.soon, w.looker.lpc = sLeave, lLoad
		})
	}
}

// newWorld is a session that has just started, with an engine at the channel and
// the CQ armed, or one that was left a moment ago.
func newWorld(f fault, atChannel bool, script ...int8) world {
	w := world{fault: f}
	if atChannel {
		w.word, w.cqArmed, w.arms, w.engine.pc = armed, true, true, eWait
	} else {
		w.word, w.rests, w.onSweep = swept|fresh, true, !f.noSweep
	}
	for i, to := range script {
		w.script[i] = to + 1
		w.waiters[to].want++
	}
	for i := range w.waiters {
		if w.waiters[i].want == 0 {
			w.waiters[i].pc = wDone
		}
	}
	return w
}

// situations are what is explored.
func situations(f fault) map[string]world {
	list := make(map[string]world)
	for name, at := range map[string]bool{"engine at the channel": true, "engine rests": false} {
		list[name+", one waiter"] = newWorld(f, at, 0, 0)
		list[name+", two waiters"] = newWorld(f, at, 0, 1)
		unasked := newWorld(f, at, 0, 0)
		unasked.waiters[0].want--
		list[name+", a message that nobody waits for"] = unasked
		deadline := newWorld(f, at, 0)
		deadline.timer = 1
		list[name+", a deadline"] = deadline
		looked := newWorld(f, at, 0)
		looked.looks = 1
		list[name+", Do"] = looked
		soon := newWorld(f, at, 0)
		soon.soon = sEnter
		list[name+", LookSoon"] = soon
		soon.patient = true
		list[name+", LookSoon while nothing comes"] = soon
		soon.fails = true
		list[name+", LookSoon and a failure"] = soon
		fails := newWorld(f, at, 0)
		fails.fails = true
		list[name+", a failure"] = fails
		looksSoon := newWorld(f, at, 0)
		looksSoon.soon, looksSoon.patient = sEnter, true
		for what, w := range map[string]world{
			"one waiter": newWorld(f, at, 0, 0), "a deadline": deadline, "Do": looked, "LookSoon": looksSoon,
			"a failure": fails,
		} {
			w.shares = true
			list[name+", a shared poller, "+what] = w
			w.busy = true
			list[name+", a busy shared poller, "+what] = w
		}
	}
	two := newWorld(f, true, 0, 1)
	two.shares = true
	list["engine at the channel, a shared poller, two waiters"] = two
	return list
}

func TestNoOrderOfStepsLosesAWakeUp(t *testing.T) {
	for name, w := range situations(fault{}) {
		t.Run(name, func(t *testing.T) {
			states, violation := explore(w)
			t.Logf("%d states", states)
			require.Empty(t, violation)
		})
	}
}

func TestTheModelFindsMistakes(t *testing.T) {
	for name, f := range map[string]fault{
		"leave does not poll again":                 {noPollInLeave: true},
		"a sleeper does not poll again":             {noPollAsleep: true},
		"the engine leaves no note":                 {noNote: true},
		"a note is ignored":                         {ignoreNote: true},
		"a note is forgotten":                       {forgetNote: true},
		"a waiter is ignored":                       {noCount: true},
		"nobody sweeps":                             {noSweep: true},
		"the engine is not called":                  {noCall: true},
		"the engine is at the channel all the same": {noRestCheck: true},
		"Do leaves without leave":                   {drop: true},
		"End wakes first":                           {lateEnd: true},
		"Close is not told":                         {noFree: true},
		"the shared poller leaves without leave":    {dropOffer: true},
		"LookSoon does not ask for the lock":        {neverAsks: true},
		"LookSoon lets the owner sleep":             {noWakeSoon: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, w := range situations(f) {
				if _, violation := explore(w); violation != "" {
					return
				}
			}
			t.Fatal("not found")
		})
	}
}
