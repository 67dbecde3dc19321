package rnet

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Who polls.
//
// The CQ of a session has one leader at a time, who holds the lead lock,
// polls, and works for everybody. Whoever waits for something tries to
// lead; who finds the lead taken parks, and the leader wakes it. When the
// leader has what it wanted it leaves, and then one of these holds:
//
//   - nobody waits: the CQ may stay unarmed, and the keeper looks after the
//     session within keeperPeriod (leaving and coming back costs nothing then,
//     which is what a request-response loop does);
//   - somebody is parked: the CQ is armed and polled once more, and the next
//     arrival wakes the engine, the session's own goroutine, which leads as
//     long as there is traffic for more than one.
//
// Lost wake-ups: one who parks counts itself (parked) before it tries the
// lead for the last time; a leader gives up the lead before it looks at the
// count. An engine that finds the lead taken leaves a note (attend) before it
// goes back to sleep; a leader looks for the note after it gave up the lead.
//
// On a wire, where no thread can sleep in the place of the engine, a leader
// does so itself if nobody else waits for long (seat.go).
type engineState struct {
	lead   sync.Mutex
	armed  bool         // the CQ is armed for the engine; guarded by lead
	hits   uint64       // not in stats.pollHits yet; guarded by lead
	parked atomic.Int32 // waiters that are parked, or about to be
	attend atomic.Bool  // an event came while somebody led
	lone   atomic.Pointer[waiter]

	watched atomic.Bool // on the keeper's list
	visited atomic.Bool // somebody led since the keeper looked

	spin   spinner
	cpus   cpuPublisher
	thread bool // the device wakes threads faster than goroutines
	seat   seat
}

// cpuPublisher is what a provider offers when both ends share CPUs.
type cpuPublisher interface {
	PublishCPU(cpu int)
	PeerCPU() (cpu int, ok bool)
}

func (s *session) initEngine() {
	s.cpus, _ = s.qp.Driver().(cpuPublisher)
	s.thread = s.dev.ctx.Attr().Caps.Has(verbs.CapThreadWait)
	s.spin.init(s.cfg.profile, !s.thread)
	s.seat.init()
}

// wait returns when w is ready. In between the caller may lead, unless an event
// loop does.
func (s *session) wait(w *waiter) {
	if s.onLoop() {
		s.waitForLoop(w)
		return
	}
	led := false // w has led, and it did not pay
	for !w.ready() {
		if !led && s.lead.TryLock() {
			led = s.leadFor(w)
			continue
		}
		s.parked.Add(1)
		if !w.announce() {
			s.parked.Add(-1)
			return
		}
		// The leader may have left before it could see us.
		if led {
			s.attendNow()
		} else if s.lead.TryLock() {
			w.retract()
			s.parked.Add(-1)
			led = s.leadFor(w)
			continue
		}
		s.lone.Store(w)
		s.stats.parks.Add(1)
		if s.seat.wanted.Load() {
			s.ch.Wake() // the engine finds that there is a lone waiter
		}
		granted := w.blockTraced()
		s.lone.CompareAndSwap(w, nil)
		s.parked.Add(-1)
		led = granted && s.leadFor(w)
	}
}

// leadFor leads until w is ready or leading does not pay any more. In the
// latter case it returns true: the engine has been set to look after the
// session, and w is to park. The caller holds lead; it does not any more
// afterwards.
func (s *session) leadFor(w *waiter) (gaveUp bool) {
	if w.state.Load() == waiterLed {
		w.state.CompareAndSwap(waiterLed, waiterWaiting)
	}
	s.disarm()
	if s.spinFor(w) || s.sleepFor(w) {
		s.leave()
		return false
	}
	s.hand()
	return true
}

// spinFor polls until w is ready, no longer than the spinner thinks it pays.
func (s *session) spinFor(w *waiter) bool {
	s.poll()
	if w.ready() {
		s.countHit()
		return true
	}
	sp := s.spin.start(s)
	for sp.on() {
		n := s.poll()
		if w.ready() {
			sp.won()
			s.countHit()
			return true
		}
		if n > 0 {
			sp.hit()
		}
	}
	sp.lost()
	s.stats.pollMisses.Add(1)
	s.tellHits()
	return false
}

// countHit counts a wait that polling ended, for Stats. It tells of 64 at a
// time: an atomic for each would be the dearest part of many waits.
func (s *session) countHit() {
	if s.hits++; s.hits == hitBatch {
		s.tellHits()
	}
}

// tellHits tells of what countHit has counted. lead is held.
func (s *session) tellHits() {
	if s.hits > 0 {
		s.stats.pollHits.Add(s.hits)
		s.hits = 0
	}
}

const hitBatch = 64

// sleepFor leads asleep, on the completion channel, where the device allows it
// on its thread: that is quicker to wake than a goroutine that the engine would
// have to wake. A thread is dear to keep, so there it gives up after a slice
// without traffic.
func (s *session) sleepFor(w *waiter) bool {
	switch {
	case s.parked.Load() > 0:
		s.seat.alone = 0
		return w.ready()
	case !s.thread && !s.mayTakeSeat():
		return w.ready()
	case s.thread && !enterThreadWait():
		return w.ready()
	case s.thread:
		defer leaveThreadWait()
	}
	for !w.ready() {
		if s.failed.Load() {
			return false // the engine drains the CQ
		}
		if s.cq.Arm(false) != nil {
			return false
		}
		if s.poll() > 0 {
			continue
		}
		if !w.state.CompareAndSwap(waiterWaiting, waiterAsleep) {
			return true
		}
		err := s.sleep()
		w.state.CompareAndSwap(waiterAsleep, waiterWaiting)
		n := s.poll()
		if (err != nil && n == 0 || s.parked.Load() > 0) && !w.ready() {
			return false
		}
	}
	return true
}

// sleep ends with an arrival (data, credit), wake of the leader's waiter
// (deadline, close), failure of the session (peer death), and on a thread with
// the end of the slice.
func (s *session) sleep() error {
	if !s.thread {
		s.stats.wakeups.Add(1)
		return s.ch.Wait(time.Time{})
	}
	defer region("rnet.threadwait").End()
	s.stats.threadWaits.Add(1)
	return s.ch.WaitThread(time.Now().Add(threadSlice))
}

// threadSlice is how long a leader sleeps on its thread before it parks.
const threadSlice = 2 * time.Millisecond

// threadWaiters bounds the threads that sleep in this way.
var threadWaiters atomic.Int32

func enterThreadWait() bool {
	if threadWaiters.Add(1) <= int32(max(2, runtime.GOMAXPROCS(0))) {
		return true
	}
	threadWaiters.Add(-1)
	return false
}

func leaveThreadWait() { threadWaiters.Add(-1) }

// disarm withdraws what was armed for the engine. The caller leads.
func (s *session) disarm() {
	if s.armed {
		s.cq.Disarm()
		s.armed = false
	}
}

// arm makes the next arrival wake the engine, and polls what came before. The
// caller leads.
func (s *session) arm() {
	s.tellHits()
	for !s.failed.Load() {
		if err := s.cq.Arm(false); err != nil {
			s.fail(err)
			break
		}
		s.armed = true
		s.callEngine()
		if s.poll() == 0 {
			return
		}
	}
	s.ch.Wake()
}

// leave gives up the lead when the leader has what it wanted.
func (s *session) leave() {
	if s.parked.Load() > 0 || s.failed.Load() {
		s.hand()
		return
	}
	if !s.visited.Load() {
		s.visited.Store(true)
	}
	s.lead.Unlock()
	if s.parked.Load() > 0 || s.attend.Load() || s.failed.Load() {
		s.attendNow()
		return
	}
	if !s.watched.Load() {
		keeper.add(s)
	}
}

// look takes in what has arrived, unless somebody leads for long, who will. A
// session that nobody waits for may have been told to go away, and a stream
// had better not be opened on it then.
func (s *session) look() {
	if s.onLoop() {
		return // its loop looks
	}
	for try := 0; !s.lead.TryLock(); try++ {
		if try == 3 {
			return
		}
		runtime.Gosched()
	}
	s.poll()
	s.lead.Unlock()
	if s.attend.Load() || s.parked.Load() > 0 {
		s.attendNow()
	}
}

// hand gives up the lead to the engine, asleep until something arrives.
func (s *session) hand() {
	s.arm()
	s.lead.Unlock()
	s.attendNow()
}

// attendNow makes sure that the session is looked after, if nobody leads it:
// by the engine, which an arrival wakes.
func (s *session) attendNow() {
	for (s.attend.Load() || s.parked.Load() > 0) && s.lead.TryLock() {
		if s.attend.Swap(false) || !s.armed {
			s.arm()
		}
		s.lead.Unlock()
		if !s.attend.Load() {
			return
		}
	}
}

// engine is the session's goroutine: it leads when nobody else does and there
// is traffic, and it ends the session.
func (s *session) engine() {
	if s.poller == nil {
		s.lead.Lock()
		s.arm()
		s.lead.Unlock()
	}
	ping, away := time.Now().Add(keepAlivePeriod), false
	for !s.closing.Load() {
		var err error
		if away {
			err = s.awaitCall(ping)
		} else {
			// Ended by: an arrival while the CQ is armed, Wake (failure, close,
			// a lone waiter), the keepalive period.
			err = s.ch.Wait(ping)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			ping = time.Now().Add(keepAlivePeriod)
			s.keepAlive()
			continue
		}
		if away {
			away = false // the CQ is armed for the engine
			continue
		}
		s.stats.wakeups.Add(1)
		if s.onLoop() {
			s.warm()
			continue
		}
		s.attend.Store(true)
		if !s.lead.TryLock() {
			continue // who leads looks at attend when it leaves
		}
		s.attend.Store(false)
		if s.engineLead() {
			s.lead.Unlock()
			s.attendNow()
		} else {
			away = !s.thread
		}
	}
	s.leaveLoop()
	s.drain()
	s.shutdown()
}

// engineLead leads while there is traffic. It returns false if it gave the
// lead away to the only one who waits.
func (s *session) engineLead() bool {
	defer region("rnet.engine").End()
	s.disarm()
	if s.seat.wanted.Swap(false) && s.parked.Load() == 1 && s.grantLone() {
		return false
	}
	sp := s.spin.startEngine(s)
	opens, settled := s.opens, 0
	for {
		if s.poll() > 0 {
			sp.hit()
			settled++
		}
		if s.closing.Load() {
			return true
		}
		if opens != s.opens {
			opens, settled = s.opens, 0
		}
		if settled >= settledHits && s.parked.Load() == 1 && s.grantLone() {
			return false
		}
		if !sp.on() {
			break
		}
	}
	s.arm()
	return true
}

// grantLone gives the lead to the one who waits, and on a wire the seat.
func (s *session) grantLone() bool {
	w := s.lone.Swap(nil)
	if w == nil {
		return false
	}
	s.seat.free = !s.thread
	if w.grant() {
		return true
	}
	s.seat.free = false
	return false
}

// settledHits is how many arrivals without a new stream make the engine think
// that the one who waits goes on to be the only one.
const settledHits = 8

// lookAfter arms the CQ if nobody leads and nobody did so: a stream has
// closed, and its reader will not come back to poll.
func (s *session) lookAfter() {
	if !s.lead.TryLock() {
		return
	}
	if !s.armed {
		s.arm()
	}
	s.lead.Unlock()
	s.attendNow()
}

// drain polls until the QP has flushed: everything that arrived before the
// failure is delivered first. Nobody leads after it.
func (s *session) drain() {
	s.lead.Lock() // ended by the leader, which sees failed
	for {
		if s.poll() == 0 {
			return
		}
	}
}

// kick wakes a leader that sleeps.
func (s *session) kick() { s.ch.Wake() }
