package wait

import (
	"context"
	"runtime"
	"runtime/trace"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// Source is what is polled. Only the owner of the lock calls its methods; anybody may
// call Failed.
type Source interface {
	// Poll takes in what has arrived, wakes the waiters that it is for, and returns
	// how many completions there were.
	Poll() int
	// Arm makes the next arrival an event of the completion channel. What
	// arrived before may not be one. An error ends the source: Failed reports
	// true from then on.
	Arm() error
	// Disarm withdraws Arm as far as that is possible.
	Disarm()
	// Failed reports whether the source has come to its end. Lock.End is called after
	// that.
	Failed() bool
}

// Channel is a completion channel, see verbs.CompChannel.
type Channel interface {
	Wait(deadline time.Time) error
	WaitThread(deadline time.Time) error
	Wake()
}

// Peer is what is known of the other end where both are on one machine. It is
// nothing but a hint: a peer may lie.
type Peer interface {
	PublishCPU(cpu int)
	PeerCPU() (cpu int, ok bool)
	// AskCPU asks the peer to run there, too, for some time; not any more if cpu is negative. Another turn
	// renews that.
	AskCPU(cpu, turn int)
	AskedCPU() (cpu, turn int, ok bool) // what the peer asks for
}

// Config is how a Lock waits.
type Config struct {
	Profile fallback.Profile
	// Peer is nil where the ends do not share a machine.
	Peer Peer
	// Thread says that the channel wakes threads faster than goroutines.
	Thread bool
	// Local says that the peer is in this process.
	Local bool
	// Accepts says that the peer may open streams, which nobody waits for. A peer in this
	// process calls SweepSoon then.
	Accepts bool
	// Leads says that this end decides whether the two share a CPU. One of them does.
	Leads bool
	// Wire says that messages come from a network: they take longer, and polling may
	// keep the kernel from receiving them on that processor.
	Wire bool
}

// Counters are for statistics.
type Counters struct {
	PollHits    atomic.Uint64 // waits that polling ended
	PollMisses  atomic.Uint64 // waits that polling did not end
	ThreadWaits atomic.Uint64 // sleeps on a thread
	Parks       atomic.Uint64 // sleeps of waiters that did not own the lock
	Wakeups     atomic.Uint64 // sleeps on the completion channel that ended with an event
}

// Lock is the poll lock of one completion queue: its owner polls, for all.
type Lock struct {
	word    cell
	src     Source
	channel Channel
	cfg     Config
	free    chan struct{} // has a token when an owner has left a source that failed
	over    chan struct{} // closed by End
	call    chan struct{} // has the token of a call to the engine

	// Used by the owner of the lock only.
	cqArmed   bool
	rests     bool    // the engine is not at the channel, nor called there
	lone      int     // events in a row for which at most one waited
	polledFor *Waiter // the owner's own, while it polls for that
	hits      uint64
	policy    policy
	sleeper   sleeper
	shared    *sharedPoller // nil before the lock was handed over for the first time

	Counters
}

// Init makes l the lock of src. The caller owns it, until Start.
func (l *Lock) Init(src Source, channel Channel, cfg Config) {
	l.src, l.channel, l.cfg = src, channel, cfg
	l.free, l.over, l.call = make(chan struct{}, 1), make(chan struct{}), make(chan struct{}, 1)
	l.rests = true
	l.policy.init(&cfg)
	l.word.Store(uint64(owned))
}

// Start gives the lock up for the first time. Run has been called, or will be. local is as in
// Config.
func (l *Lock) Start(local bool) {
	if l.cfg.Local = local; local {
		l.cfg.Accepts = false // see there
	}
	l.word.note()
	l.leave()
}

// Wait returns when w is ready. In between the caller may own the lock, poll
// for everybody, and sleep on the completion channel.
func (l *Lock) Wait(w *Waiter) {
	if l.Await(w) {
		l.leave()
	}
}

// Await is Wait for a caller who takes what the polls brought: it reports whether the caller owns
// the lock, and has to leave it.
func (l *Lock) Await(w *Waiter) (owns bool) {
	for !w.Ready() {
		if l.enter() {
			l.polledFor = w
			did := l.pollFor(w)
			l.polledFor = nil
			if did == pollEnded || did == pollMissed && l.sleepFor(w) {
				return true
			}
			// The shared poller polls on, or others wait too and the engine serves all.
			l.word.register()
			parked := w.park()
			if !parked {
				l.word.withdraw()
			}
			if parked && did == pollShares {
				l.shared.offer(l)
			} else {
				l.leave()
			}
			if !parked {
				return false
			}
		} else if !w.park() {
			l.word.withdraw()
			return false
		}
		l.block(w)
	}
	return false
}

// Leave gives up the lock after Await.
func (l *Lock) Leave() { l.leave() }

func (l *Lock) block(w *Waiter) {
	defer region("rnet.park").End()
	l.Parks.Add(1)
	w.block()
}

// Wake makes w ready and ends its Wait. Any goroutine may call it.
func (l *Lock) Wake(w *Waiter) {
	switch w.wake() {
	case waiterParked:
		l.word.withdraw()
		w.token <- struct{}{}
	case waiterAsleep:
		l.channel.Wake()
	}
}

// WakeOrTake is Wake where w may be of a stream of an event loop, which does not park: if w waits, and is
// neither parked nor asleep, it is ready after it, and a list is to tell the loop that the stream may go on.
func (l *Lock) WakeOrTake(w *Waiter) (taken bool) {
	for {
		switch w.state.Load() {
		case waiterWaiting:
			if w.state.CompareAndSwap(waiterWaiting, waiterReady) {
				return true
			}
		case waiterParked, waiterAsleep:
			l.Wake(w)
			return false
		default:
			return false
		}
	}
}

// WakePolled is Wake for a Poll of the Source. It needs no exchange if the poll is for w.
func (l *Lock) WakePolled(w *Waiter) {
	if w == l.polledFor {
		w.wakeSelf()
		return
	}
	l.Wake(w)
}

// enter takes the lock, or registers the caller as a waiter.
func (l *Lock) enter() bool { return l.step(word.entered) }

// enterOrNote takes the lock, or makes sure that its owner polls again.
func (l *Lock) enterOrNote() bool { return l.step(word.enterOrNote) }

func (l *Lock) step(step func(word) (word, bool)) bool {
	for {
		s := l.word.load()
		next, owns := step(s)
		if l.word.swap(s, next) {
			if owns {
				l.disarm()
			}
			return owns
		}
	}
}

// leave gives up the lock. It is the only way to do so.
func (l *Lock) leave() {
	wasNoted := false
	for round := 0; ; round++ {
		s := l.word.load()
		how := s.departing()
		if s.has(noted) {
			if !l.word.swap(s, s&^noted) {
				continue
			}
			wasNoted = true
		}
		if wasNoted { // for who left it, whatever the polls of this call bring
			how = departArmed
		}
		// after the note was taken: Close, which leaves one, has seen that before
		if l.src.Failed() {
			l.leaveFailed()
			return
		}
		if how == departArmed {
			if l.armAndPoll() {
				if round < leaveRounds {
					continue // it may be what they wait for
				}
				l.channel.Wake() // traffic that does not end is the engine's
			}
			l.CallEngine()
			s = l.word.load()
		} else {
			l.disarm()
		}
		if next, ok := s.left(how); ok && l.word.swap(s, next) {
			if how == departFree && !s.has(swept) {
				sweep.add(l)
			}
			return
		}
	}
}

// leaveFailed gives up the lock of a source that has failed: only Close takes it again.
func (l *Lock) leaveFailed() {
	for {
		s := l.word.load()
		if l.word.swap(s, s&^(owned|noted)) {
			break
		}
	}
	select {
	case l.free <- struct{}{}:
	default:
	}
}

// leaveRounds is how many more batches an owner takes in that already has what it wants.
const leaveRounds = 16

// armAndPoll arms the CQ and polls what has come before. It reports whether there
// was something. The caller owns the lock.
func (l *Lock) armAndPoll() bool {
	l.tellHits()
	if l.src.Arm() != nil {
		return true // it has failed
	}
	l.cqArmed = true
	return l.poll() > 0
}

func (l *Lock) disarm() {
	if l.cqArmed {
		l.src.Disarm()
		l.cqArmed = false
	}
}

// Look polls until nothing more comes, and reports whether it did. It does not if another
// goroutine has the lock.
func (l *Lock) Look() bool {
	return l.Do(func() {
		for range leaveRounds {
			if l.poll() == 0 {
				return
			}
		}
		l.word.note() // traffic that does not end: leave arms the CQ
	})
}

// LookSoon is Look, but takes the lock from another goroutine that has it. It gives up if that
// takes longer than timeout.
func (l *Lock) LookSoon(timeout time.Duration) {
	if !l.enter() { // registered: the owner will not go to sleep
		l.channel.Wake()
		if !l.takeOver(time.Now().Add(timeout)) {
			return
		}
	}
	l.poll()
	l.word.note() // the CQ was armed
	l.leave()
}

// takeOver makes the caller, a registered waiter, the owner when the present one has left.
// It returns false, and the caller is not registered any more, if that is not before end.
func (l *Lock) takeOver(end time.Time) bool {
	for try := 0; ; try++ {
		s := l.word.load()
		next, owns := s.takenOver()
		if !owns && !s.has(asked) {
			l.word.ask()
		}
		switch {
		case owns && l.word.swap(s, next):
			l.disarm()
			return true
		case owns:
		case l.src.Failed() || !time.Now().Before(end):
			l.word.unask()
			l.word.withdraw()
			return false
		case try < 100:
			runtime.Gosched()
		default:
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// Unattended reports whether nobody takes in soon what arrives: nobody has the lock,
// and the CQ is not armed. Then it is the sweep's.
func (l *Lock) Unattended() bool { return !l.word.load().has(owned | armed) }

// Do runs f as the owner of the lock, and reports whether it did. It does not if
// another goroutine has the lock.
func (l *Lock) Do(f func()) bool {
	s := l.word.load()
	next, owns := s.entered()
	for owns && !l.word.swap(s, next) { // a note, perhaps
		s = l.word.load()
		next, owns = s.entered()
	}
	if !owns {
		return false
	}
	l.disarm()
	f()
	if s.has(armed) {
		l.word.note()
	}
	l.leave()
	return true
}

// EnsureArmed makes sure that the next arrival is taken in at once although nobody
// waits. It is for callers after which nobody may poll again.
func (l *Lock) EnsureArmed() {
	if l.word.load().has(armed) {
		return
	}
	if l.enterOrNote() {
		l.word.note()
		l.leave()
	}
}

// End wakes the owner, which leaves a source that has failed, and ends Run.
func (l *Lock) End() {
	close(l.over) // first: an engine that Wake has woken looks for it
	l.channel.Wake()
}

// Close takes the lock of a source that has failed, for good. It waits for the
// owner.
func (l *Lock) Close() {
	for !l.enterOrNote() {
		<-l.free // ended by the owner, whom End has woken
	}
	l.tellHits()
}

// Release gives up a lock that an event loop has owned.
func (l *Lock) Release() {
	l.word.note()
	l.leave()
}

// countHit counts a wait that polling ended. It adds 64 at a time to PollHits: an atomic
// operation for each would be the most expensive part of many waits.
func (l *Lock) countHit() {
	if l.hits++; l.hits == 64 {
		l.tellHits()
	}
}

func (l *Lock) tellHits() {
	if l.hits > 0 {
		l.PollHits.Add(l.hits)
		l.hits = 0
	}
}

func region(name string) *trace.Region { return trace.StartRegion(context.Background(), name) }

var procs = runtime.GOMAXPROCS(0)

// CallEngine calls the engine to the completion channel. An event loop, which keeps the
// lock for good, does so once at the start, and learns of events by
// Engine.LoopEvent.
func (l *Lock) CallEngine() {
	if l.rests {
		l.rests = false
		l.call <- struct{}{} // never blocks: the engine takes the token before it rests again
	}
}

// Rested says, for such an owner, that LoopEvent has told the engine to rest: the owner may wait at the
// completion channel in its place, until CallEngine.
func (l *Lock) Rested() { l.rests = true }

// Rearm arms the CQ for such an owner, and polls what came before.
func (l *Lock) Rearm() (n int) {
	l.tellHits()
	if l.src.Arm() != nil {
		return 1 // it has failed
	}
	l.cqArmed = true
	return l.poll()
}

// Disarm withdraws Rearm.
func (l *Lock) Disarm() { l.disarm() }

// CountHit counts a poll of such an owner that brought something.
func (l *Lock) CountHit() { l.countHit() }
