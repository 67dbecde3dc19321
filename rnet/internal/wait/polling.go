package wait

import (
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// policy decides how long the owners of a lock, and its engine, poll before they sleep.
type policy struct {
	profile fallback.Profile
	arrived int // messages
	pace    pace
	batches pace          // the same for an engine, which waits for several at once
	yields  time.Duration // between two chances for other goroutines

	same    bool // the peer was on our CPU when we looked last
	sameFor int  // waits since then
	Placement
	wins    int // waits that ended while polling, since the last chance for other goroutines
	yielded time.Duration
	joined  uint32 // period of crowd in which we were counted last
	used    uint32 // the same of inUse

	tokens int64 // ns of polling that may yet be in vain
	filled time.Duration
	rate   int64 // tokens per 1024 ns
	broke  bool

	sessions   int // in use by the process at the last wait
	colocation colocation
}

// LatencySpin is how long anybody polls in the profile latency, LoopSpin how long an event loop does in
// balanced.
const (
	LatencySpin = 2 * time.Millisecond
	LoopSpin    = 50 * time.Microsecond
)

var start = time.Now()

// now is the time since the process began. It costs less than time.Now.
func now() time.Duration { return time.Since(start) }

func (p *policy) init(cfg *Config) {
	p.profile = cfg.Profile
	p.yields = spinYield
	limit, cheap, batch := balancedSpin, cheapSpin, balancedSpin
	if cfg.Wire {
		limit, cheap, batch = time.Millisecond, 500*time.Microsecond, wireBatch
		if procs > 1 {
			p.yields = 50 * time.Microsecond
		}
	}
	if cfg.Profile == fallback.Latency {
		limit, batch = LatencySpin, LatencySpin
	}
	p.pace.init(limit, cheap)
	p.batches.init(batch, engineCheap)
	p.batches.patient = true
	p.tokens, p.rate = allowance, fullRate
	p.colocation.id = colocations.Add(1)
}

// pollers counts the owners in this process that have polled for longer than placement, and the shared pollers.
var pollers atomic.Int32

// poll polls the source. An event loop does so by itself.
func (l *Lock) poll() int {
	n := l.src.Poll()
	l.policy.arrived += n
	return n
}

// polling is how polling for a waiter has ended.
type polling uint8

const (
	pollEnded  polling = iota // the waiter is ready
	pollMissed                // the policy does not allow any more
	pollShares                // the lock is to be handed over to the shared poller
)

// pollFor polls until w is ready, no longer than the policy allows.
func (l *Lock) pollFor(w *Waiter) polling {
	l.poll()
	if w.Ready() {
		l.countHit()
		l.policy.won()
		return pollEnded
	}
	begin := now()
	if l.shares(begin) {
		l.policy.pace.forget()
		return pollShares
	}
	if l.colocated(begin) {
		l.policy.pace.forget()
		return pollMissed
	}
	if l.spinFor(w, begin) {
		l.countHit()
		return pollEnded
	}
	l.PollMisses.Add(1)
	return pollMissed
}

// won is called when polling has ended a wait. Every 32nd time it lets other goroutines
// run: a goroutine whose waits all end by polling would never yield.
func (p *policy) won() {
	if p.wins++; p.wins < 32 {
		return
	}
	p.wins = 0
	t := now()
	if procs > 1 && t-p.yielded < time.Millisecond && !p.mayLook(t) {
		return
	}
	p.yielded = p.giveWay()
}

const (
	pollBatch    = 16                   // polls between two looks at the clock
	placement    = 3 * time.Microsecond // polled before we ask on which CPUs the two ends run
	balancedSpin = 200 * time.Microsecond
	cheapSpin    = 30 * time.Microsecond
	wireBatch    = 50 * time.Microsecond // polled by an engine on a wire

	// spinYield is between two chances for other goroutines, cpuYield between two
	// for other threads of the CPU, beginning after cpuYieldAfter: polling for so long
	// may be what keeps the peer from running. Sooner it costs more than it gives.
	spinYield     = time.Microsecond
	cpuYieldAfter = 50 * time.Microsecond
	cpuYield      = 20 * time.Microsecond

	// A lock may have polled in vain for allowance, and gets it back at a rate of
	// fullRate/1024 of the time that passes, down to leastRate/1024.
	allowance = int64(2 * time.Millisecond)
	fullRate  = 256
	leastRate = 8
)

// spinFor is pollFor after the first poll. It is called at begin.
func (l *Lock) spinFor(w *Waiter, begin time.Duration) bool {
	p := &l.policy
	if p.profile == fallback.Efficient || l.cfg.Local {
		return false
	}
	if p.same || procs == 1 {
		if p.same && p.sameFor < 16 {
			p.sameFor++
			p.pace.forget()
			return false
		}
		if p.peerOnSameCPU(l.cfg.Peer) && (!p.Leave() || p.peerOnSameCPU(l.cfg.Peer)) {
			p.pace.forget()
			return false
		}
	}
	most, ok := p.mayPoll(&p.pace, begin)
	if !ok {
		return false
	}
	asked, counted := procs == 1, false
	defer func() {
		if counted {
			pollers.Add(-1)
		}
	}()
	t, yielded, yieldedCPU := begin, begin, begin
	for {
		for range pollBatch {
			l.poll()
			if w.Ready() {
				p.won()
				p.hit(t - begin) // but for less than a batch
				return true
			}
		}
		t = now()
		if t-begin > most {
			p.pace.miss()
			break
		}
		if !asked && t-begin > placement {
			asked = true
			if p.peerOnSameCPU(l.cfg.Peer) {
				p.pace.forget()
				break
			}
		}
		if !counted && t-begin > placement {
			counted = true
			if pollers.Add(1) > int32(max(1, procs-1)) && p.profile != fallback.Latency {
				p.pace.forget()
				break
			}
		}
		if t-yielded >= p.yields {
			t = p.giveWay()
			yielded = t
		}
		if t-begin >= cpuYieldAfter && t-yieldedCPU >= cpuYield {
			yieldCPU()
			t = now()
			yieldedCPU = t
		}
	}
	p.tokens -= int64(now() - begin)
	return false
}

// peerOnSameCPU publishes our CPU and reports whether the peer runs on the same
// one: then it cannot go on while we poll.
func (p *policy) peerOnSameCPU(peer Peer) bool {
	p.same, p.sameFor = SameCPU(peer), 0
	return p.same
}

// SameCPU publishes our CPU and reports whether the peer was seen on it last.
func SameCPU(peer Peer) bool {
	if peer == nil {
		return false
	}
	cpu := currentCPU()
	peer.PublishCPU(cpu)
	other, ok := peer.PeerCPU()
	return ok && other == cpu
}

// mayPoll begins a wait at t, of those that a pace is kept of, and reports whether it may poll and for how long.
func (p *policy) mayPoll(of *pace, t time.Duration) (most time.Duration, ok bool) {
	if p.profile == fallback.Latency {
		return of.limit, true
	}
	of.begin(t, p.arrived)
	most = of.most()
	of.polls = p.afford(t) && !of.compares() && most > 0
	return most, of.polls
}

// afford reports whether the allowance has anything left for polling. It grows with time,
// and more slowly each time that it has been used up.
func (p *policy) afford(t time.Duration) bool {
	if p.filled == 0 {
		p.filled = t
	}
	p.tokens = min(allowance, p.tokens+int64(t-p.filled)*p.rate>>10)
	p.filled = t
	if p.broke && p.tokens < allowance/2 {
		return false
	}
	p.broke = false
	if p.tokens > 0 {
		return true
	}
	p.broke = true
	p.rate = max(p.rate/2, leastRate)
	return false
}

// hit is called when polling for so long has ended a wait of an owner.
func (p *policy) hit(took time.Duration) {
	p.pace.hit()
	p.charge(&p.pace, took)
}

// charge takes so much polling from the allowance, unless it was worth its CPU time.
func (p *policy) charge(of *pace, took time.Duration) {
	if p.profile == fallback.Latency || of.pays(took) {
		p.paid()
	} else {
		p.tokens -= int64(took)
	}
}

// paid is called when polling was worth its CPU time.
func (p *policy) paid() {
	p.Settle()
	if p.rate < fullRate {
		p.rate++
	}
}
