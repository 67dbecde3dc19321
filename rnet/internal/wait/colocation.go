package wait

import (
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// colocation has both ends of a session run on one CPU while other programs compute on all of them.
// There, ends on two CPUs wait for a slice of somebody else at each of them, for each message, and ends on one
// CPU take turns. The kernel's scheduler brings threads together that wake each other, but not reliably,
// and a Go program has several that may run the goroutine which waits.
//
// The end that has dialed decides. Where a session does one thing after the other, stalls now and then, and its
// threads have no CPU meanwhile, it asks the peer to run on its own CPU (Peer.AskCPU), and each end moves
// there whichever of its threads waits for the session. It goes on with that if more messages come than before, and
// looks from time to time what they would be apart. The other end follows while few sessions are in use,
// and answers with the same CPU. It does not any more where the first one does not renew that: it does not wait then, and may
// compute. Whatever it is asked for, it moves maxMoves threads in a window at most.
//
// Only the owner of the lock uses it.
type colocation struct {
	state   colocationState
	last    time.Duration // when the last wait began
	begun   time.Duration // when the window began
	waits   int           // in the window, but for those that the first poll ended
	stalls  int           // the waits of stall and more among them
	stalled time.Duration // how long these took
	moves   int           // of threads, in the window
	unasked int           // waits since a follower has looked what it is asked for
	turn    int           // of what is asked for: of the window, or of what the peer asked for last
	renewed time.Duration // when the peer did

	id       uint64
	cpu      int           // where both ends are to run
	arrived  int           // messages before the window
	windows  int           // since the state began
	calm     int           // windows in a row with few stalls
	alone    int           // windows in a row at whose end the peer did not follow
	mostCalm int           // so many of them end in a check
	delayed  time.Duration // for which threads of ours had no CPU; each window forgets half of it
	delays   *threadDelays // nil before the first stall
	apart    float64       // messages a second
	together float64       // the same
	next     time.Duration // when to try or to check again
	backoff  time.Duration // before the last trial
	checks   time.Duration // before the last check
}

type colocationState uint8

const (
	apart     colocationState = iota
	trial                     // on one CPU, to see whether that is faster
	together                  // on one CPU
	check                     // apart, to see whether that is faster by now
	following                 // on the CPU that the peer asks for
)

const (
	window = 25 * time.Millisecond
	// stall is a wait that may have been one for a CPU, longWait a pause of the program.
	stall    = time.Millisecond
	longWait = 50 * time.Millisecond

	// A trial needs a window of fewestWaits and more, with one message for each as a rule: programs with several calls at
	// a time wait for their own work. Stalls take 1/stalledPart of it, but are few of its waits.
	fewestWaits = 16
	stalledPart = 8

	settling     = 1 // windows after a change that say nothing
	apartWindows = 2 // then so many before a trial, of which the last
	meanWindows  = 8 // make the mean
	trialWindows = 2

	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
	firstCheck   = 250 * time.Millisecond
	lastCheck    = 8 * time.Second
	aloneWindows = 2 // after a pause the peer needs one to follow again
	calmWindows  = 4 // twice as many after each check, lastCheck at most; a window with stalls begins anew

	maxMoves    = 100 // some microseconds each
	askEvery    = 16  // waits
	maxSessions = 2   // in use in a process that follows or leads: a proxy has two
)

// colocated is called by an owner that has to wait, at t. It reports whether both ends run on one CPU: then
// the peer cannot go on while we poll.
func (l *Lock) colocated(t time.Duration) bool {
	p := &l.policy
	switch {
	case l.cfg.Peer == nil || l.cfg.Local || p.profile == fallback.Latency:
		return false
	case l.cfg.Leads:
		return p.colocation.lead(l.cfg.Peer, t, p.arrived, p.sessions)
	}
	return p.colocation.follow(l.cfg.Peer, t, p.sessions)
}

// lead is called at t, when so many messages had arrived and so many sessions of the process were in use.
func (c *colocation) lead(peer Peer, t time.Duration, arrived, sessions int) bool {
	c.waits++
	took := t - c.last
	c.last = t
	switch {
	case took >= longWait:
		c.begin(t, arrived)
		c.paused(peer, t)
	case took >= stall:
		c.stalls++
		c.stalled += took
		if c.state == apart && t >= c.next && c.mayTry() {
			c.delayed += c.delay(t)
		}
	}
	if t-c.begun >= window {
		c.settle(peer, t, arrived-c.arrived, sessions)
		c.begin(t, arrived)
	}
	if c.state != trial && c.state != together {
		return false
	}
	if cpu, ok := follows.where(t); ok && cpu != c.cpu { // a proxy, which another session has called there
		c.cpu = cpu
		peer.AskCPU(cpu, c.turn)
	}
	if sessions > maxSessions || !leads.hold(c.id, c.cpu, t) || !c.move(peer) {
		c.part(peer, t)
		return false
	}
	return true
}

func (c *colocation) begin(t time.Duration, arrived int) {
	c.begun, c.arrived, c.waits, c.stalls, c.stalled, c.moves = t, arrived, 0, 0, 0, 0
	c.delayed /= 2
}

// mayTry reports whether the window, as far as it has gone, is one of quick waits and few stalls.
func (c *colocation) mayTry() bool { return c.waits >= fewestWaits && c.stalls <= c.waits/4 }

// settle ends a window at t, in which so many messages came.
func (c *colocation) settle(peer Peer, t time.Duration, messages, sessions int) {
	if c.state == trial || c.state == together {
		c.renew(peer)
	}
	took := t - c.begun
	rate := float64(messages) / took.Seconds()
	stalled := c.stalled >= took/stalledPart
	if c.windows++; c.windows <= settling {
		if c.state == trial && !c.followed(peer) {
			c.part(peer, t)
		}
		return
	}
	n := c.windows - settling
	switch c.state {
	case apart:
		c.apart += (rate - c.apart) / float64(min(n, meanWindows))
		if n >= apartWindows && t >= c.next && stalled && c.mayTry() && c.waits >= messages-messages/4 {
			c.try(peer, t, sessions)
		}
	case trial:
		c.together += (rate - c.together) / float64(n)
		switch {
		case n < trialWindows:
		case c.together < c.apart+c.apart/4:
			c.part(peer, t)
		default:
			c.checks, c.mostCalm = firstCheck, calmWindows
			c.gather(peer, together, t)
		}
	case together:
		if c.followed(peer) {
			c.alone = 0
		} else if c.alone++; c.alone == aloneWindows {
			c.part(peer, t)
			return
		}
		c.together += (rate - c.together) / 4
		if c.calm++; stalled {
			c.calm, c.mostCalm = 0, calmWindows
		}
		if t >= c.next || c.calm >= c.mostCalm {
			c.check(peer)
		}
	case check:
		if rate > c.together-c.together/8 {
			c.backoff = 0
			c.part(peer, t)
			return
		}
		c.checks = min(2*c.checks, lastCheck)
		c.gather(peer, together, t)
	}
}

// try begins a trial, if the stalls were waits for a CPU.
func (c *colocation) try(peer Peer, t time.Duration, sessions int) {
	if SameCPU(peer) { // at the moment, or for good
		c.next = t + firstBackoff
		return
	}
	cpu, ok := follows.where(t)
	if !ok {
		cpu = currentCPU()
	}
	if c.delayed < stall || sessions > maxSessions || !leads.hold(c.id, cpu, t) {
		c.retreat(t)
		return
	}
	c.cpu = cpu
	c.gather(peer, trial, t)
}

func (c *colocation) gather(peer Peer, s colocationState, t time.Duration) {
	c.enter(s)
	c.next = t + c.checks
	c.renew(peer)
}

// followed reports whether the peer says that it runs where it was asked to.
func (c *colocation) followed(peer Peer) bool {
	cpu, _, ok := peer.AskedCPU()
	return ok && cpu == c.cpu
}

// renew asks for longer.
func (c *colocation) renew(peer Peer) {
	c.turn++
	peer.AskCPU(c.cpu, c.turn)
}

func (c *colocation) check(peer Peer) {
	c.mostCalm = min(2*c.mostCalm, int(lastCheck/window))
	c.enter(check)
	peer.AskCPU(-1, 0)
}

// paused is called after a long wait, with which a window begins anew. Where each window has one nothing is learned
// any more.
func (c *colocation) paused(peer Peer, t time.Duration) {
	switch {
	case c.state == trial:
		c.part(peer, t)
	case c.state == together && t >= c.next:
		c.check(peer)
	}
}

// part has the ends run where the kernel's scheduler likes.
func (c *colocation) part(peer Peer, t time.Duration) {
	peer.AskCPU(-1, 0)
	leads.leave(c.id)
	c.enter(apart)
	c.retreat(t)
}

// retreat puts the next trial off.
func (c *colocation) retreat(t time.Duration) {
	c.backoff = min(max(2*c.backoff, firstBackoff), lastBackoff)
	c.next = t + c.backoff
}

func (c *colocation) enter(s colocationState) { c.state, c.windows, c.calm, c.alone = s, 0, 0, 0 }

// follow is called at t, when so many sessions of the process were in use.
func (c *colocation) follow(peer Peer, t time.Duration, sessions int) bool {
	if c.state != following {
		if c.unasked++; c.unasked < askEvery {
			return false
		}
		c.unasked = 0
	}
	cpu, turn, ok := peer.AskedCPU()
	if turn != c.turn {
		c.turn, c.renewed = turn, t
	}
	if !ok || t-c.renewed >= gatheringHeld || sessions > maxSessions || !follows.hold(c.id, cpu, t) {
		if c.state == following {
			c.enter(apart)
			follows.leave(c.id)
			peer.AskCPU(-1, 0)
		}
		return false
	}
	if t-c.begun >= window {
		c.begin(t, 0)
	}
	c.state, c.cpu = following, cpu
	if !c.move(peer) {
		peer.AskCPU(-1, 0)
		return false
	}
	peer.AskCPU(cpu, turn)
	return true
}

// move moves the thread where both ends are to run, and reports whether it is there.
func (c *colocation) move(peer Peer) bool {
	if currentCPU() != c.cpu {
		if c.moves++; c.moves > maxMoves || !joinCPU(c.cpu) {
			return false
		}
	}
	peer.PublishCPU(c.cpu)
	return true
}

// delay returns for how long the thread had no CPU before t.
func (c *colocation) delay(t time.Duration) time.Duration {
	if c.delays == nil {
		c.delays = new(threadDelays)
	}
	return c.delays.since(t)
}

// leads and follows say for which sessions the threads of this process gather, and where: one that it has
// dialed, and one that it has accepted.
var leads, follows gathering

// gathering is held by one session as long as that waits for something now and then.
type gathering struct {
	holder atomic.Uint64 // its id, 0 if there is none
	held   atomic.Int64  // when it waited last, as now tells it
	cpu    atomic.Int64
}

// gatheringHeld is how long a session holds it that does not wait, and how long a peer follows that is not asked again.
const gatheringHeld = 4 * longWait

// colocations gives them ids.
var colocations atomic.Uint64

// hold reports whether the session holds it from t on.
func (g *gathering) hold(id uint64, cpu int, t time.Duration) bool {
	if h := g.holder.Load(); h != id && (g.heldAt(h, t) || !g.holder.CompareAndSwap(h, id)) {
		return false
	}
	g.held.Store(int64(t))
	g.cpu.Store(int64(cpu))
	return true
}

func (g *gathering) leave(id uint64) { g.holder.CompareAndSwap(id, 0) }

// where returns the CPU on which the holder gathers threads.
func (g *gathering) where(t time.Duration) (cpu int, ok bool) {
	return int(g.cpu.Load()), g.heldAt(g.holder.Load(), t)
}

func (g *gathering) heldAt(holder uint64, t time.Duration) bool {
	return holder != 0 && int64(t)-g.held.Load() < int64(gatheringHeld)
}
