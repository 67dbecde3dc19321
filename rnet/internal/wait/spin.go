package wait

import (
	"runtime"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// spin is how an engine polls: it gives the goroutines that it woke time to answer, and the peer, as
// long as that pays. It does not where the peer is in this process, and would wait for it.
type spin struct {
	lock    *Lock
	limit   time.Duration // how long to poll in vain
	polled  time.Duration // since a poll has brought something
	yielded time.Duration // polled when other threads of the CPU had their last chance
	polls   bool          // as long as the policy allows, which learns from it
	placed  bool          // has asked whether the peer is on our CPU
	last    time.Duration // when a poll has brought something
	t       time.Duration // when polled was counted
	n       int           // polls
}

const (
	// briefSpin is how long an engine polls that may not poll: a goroutine that it woke may answer at
	// once.
	briefSpin = 10 * time.Microsecond

	// engineCheap is for how long polling for a batch costs less than a wake-up.
	engineCheap = 30 * time.Microsecond

	// enginePoll is the most that a batch of polls counts as polling, with the yield after it: if it took
	// longer, goroutines ran in between, or other threads.
	enginePoll = 20 * time.Microsecond

	// engineStays is how long an engine polls in vain if others use most of that time.
	engineStays = time.Millisecond
)

// engineSpin is called after an event, before the first poll.
func (l *Lock) engineSpin() spin {
	sp := spin{lock: l}
	switch {
	case l.policy.profile == fallback.Efficient || l.cfg.Local:
	case l.policy.profile == fallback.Latency:
		sp.begin(LatencySpin, now())
	default:
		sp.begin(briefSpin, now())
	}
	return sp
}

func (sp *spin) begin(limit, t time.Duration) {
	sp.limit, sp.polled, sp.last, sp.t = limit, 0, t, t
	sp.yielded, sp.placed, sp.polls = cpuYieldAfter-cpuYield, false, false
}

// hit says that a poll has brought something.
func (sp *spin) hit() {
	p := &sp.lock.policy
	if sp.limit == 0 {
		return
	}
	if sp.polls {
		sp.count(now())
		p.hitBatch(sp.polled)
	}
	t := p.giveWay() // let those run whom the batch has woken
	most, polls := p.mayPoll(&p.batches, t)
	if !polls {
		most = briefSpin
	}
	sp.begin(most, t)
	sp.polls = polls
}

// hitBatch is hit for an engine. Messages that come at a pace come in bunches: what is found at once within one
// does not show that polling pays, nor that it is to be longer.
func (p *policy) hitBatch(took time.Duration) {
	b := &p.batches
	b.bound = min(b.limit, max(b.bound, 2*took))
	if took <= b.cheap {
		p.Settle()
	} else {
		p.charge(b, took)
	}
}

// on reports whether to poll once more.
func (sp *spin) on() bool {
	if sp.limit == 0 {
		return false
	}
	if sp.n++; sp.n%pollBatch != 0 {
		return true
	}
	runtime.Gosched()
	sp.count(now())
	if sp.polls && !sp.placed && sp.polled > placement {
		sp.placed = true
		if SameCPU(sp.lock.cfg.Peer) { // it cannot go on while we poll
			sp.lock.policy.batches.forget()
			sp.limit, sp.polls = briefSpin, false
		}
	}
	switch {
	case sp.polled >= sp.limit:
		if p := &sp.lock.policy; sp.polls {
			p.tokens -= int64(sp.polled)
			p.batches.miss()
		}
		return false
	case sp.t-sp.last >= max(sp.limit, engineStays) || sp.lock.word.load().has(asked):
		sp.lock.policy.batches.forget()
		return false
	case sp.polled-sp.yielded >= cpuYield:
		yieldCPU()
		sp.count(now())
		sp.yielded = sp.polled
	}
	return true
}

// count counts the time since it was called last.
func (sp *spin) count(t time.Duration) {
	sp.polled += min(t-sp.t, enginePoll)
	sp.t = t
}
