package rnet

import (
	"runtime"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// spinner decides how long a session's leaders poll before they sleep. Its
// fields are guarded by lead, but for the first two.
//
// The balanced profile polls for baseSpin where that has paid lately. That is
// stable if a wake-up costs less: where it costs more, two ends that sleep go on
// to sleep, because neither polls until the other has woken up, although both
// would be quick if they polled. On a wire, where a sleeper has no quicker way
// to wake than through the scheduler, a probe therefore polls for longer. If
// something comes in that time the session goes on to poll as long as that
// would have taken, on trial: what it waits for has to come in half of the time
// now, which is worth the processor, for a wake-up takes its time of it too.
type spinner struct {
	profile fallback.Profile
	wire    bool
	yield   time.Duration // how long a leader may keep other goroutines of its processor waiting

	limit   time.Duration // of a spin
	futile  int           // spins in a row that brought nothing
	skipped int           // spins left out since the last probe
	every   int           // one in so many is a probe
	trial   trial
}

// trial finds out whether a limit beyond baseSpin pays. It takes several windows,
// because the peer has to try as well, which it does by itself.
type trial struct {
	quick time.Duration // what a wait may take
	waits int           // in this window
	slow  int           // of these
	bad   int           // windows in a row with too many slow waits
}

const (
	baseSpin    = 50 * time.Microsecond
	longSpin    = time.Millisecond // a probe on a wire
	latencySpin = 2 * time.Millisecond

	maxFutile   = 4    // after so many futile spins in a row they are left out
	probeEvery  = 16   // but for one in so many
	probeRarely = 1024 // or in so many, if probes do not pay

	trialWaits   = probeEvery // in a window
	trialWindows = 3
)

func (sp *spinner) init(p fallback.Profile, wire bool) {
	sp.profile, sp.wire, sp.limit, sp.every = p, wire, baseSpin, probeEvery
	if wire && runtime.GOMAXPROCS(0) > 1 {
		sp.yield = wireYield
	}
}

// spinTime is the longest spin without a hit.
func (sp *spinner) spinTime() time.Duration {
	switch sp.profile {
	case fallback.Latency:
		return latencySpin
	case fallback.Efficient:
		return 0
	}
	return sp.limit
}

// tries reports whether the spinner learns from waits.
func (sp *spinner) tries() bool { return sp.wire && sp.profile == fallback.Balanced }

// placementTime is the part of a spin that is made without asking on which
// CPUs the two ends run.
const placementTime = 3 * time.Microsecond

// spinRun is one spin.
type spinRun struct {
	s       *session
	limit   time.Duration
	begin   time.Time
	end     time.Time
	check   time.Time
	yielded time.Time
	asked   bool
	n       int
	engine  bool
	probe   bool
	stopped bool
}

func (sp *spinner) start(s *session) spinRun {
	limit, probe := sp.spinTime(), false
	if sp.profile != fallback.Latency && sp.futile >= maxFutile {
		if sp.skipped++; sp.skipped < sp.every {
			return spinRun{stopped: true}
		}
		sp.skipped = 0
		if probe = sp.tries(); probe {
			limit = longSpin
		}
	}
	r := newSpinRun(s, limit)
	r.probe = probe
	return r
}

// startEngine is the spin of the engine: it gives those whom it woke the time
// to answer.
func (sp *spinner) startEngine(s *session) spinRun {
	r := newSpinRun(s, sp.engineTime())
	r.engine = true
	return r
}

// engineTime is the spin of an engine without a hit.
func (sp *spinner) engineTime() time.Duration {
	if sp.profile == fallback.Latency {
		return latencySpin
	}
	return min(sp.spinTime(), baseSpin)
}

func newSpinRun(s *session, limit time.Duration) spinRun {
	if limit == 0 {
		return spinRun{stopped: true}
	}
	now := time.Now()
	return spinRun{s: s, limit: limit, begin: now, yielded: now, end: now.Add(limit), check: now.Add(placementTime)}
}

// spinYield is how many polls lie between two looks at the clock and chances
// for other goroutines.
const spinYield = 16

// wireYield is how much time lies between two such chances while a leader polls
// for a message from a wire. A yield makes Go's scheduler wake a thread that
// looks for work, and the processor that this takes is one on which the kernel
// or the peer would get the message on its way. Where Go has one processor only
// a yield wakes nobody, and nobody else would run the other goroutines.
const wireYield = 50 * time.Microsecond

// wireStall is after which time without anything from a wire a leader thinks
// that it may keep the peer, or the kernel, off its processor.
const wireStall = 200 * time.Microsecond

// on reports whether to poll once more.
func (r *spinRun) on() bool {
	if r.stopped {
		return false
	}
	if r.n++; r.n%spinYield != 0 {
		return true
	}
	now := time.Now()
	if r.engine || now.Sub(r.yielded) >= r.s.spin.yield {
		runtime.Gosched()
		now = time.Now()
		r.yielded = now
	}
	if r.s.spin.wire && !r.engine && now.Sub(r.begin) > wireStall {
		yieldCPU()
	}
	if now.After(r.end) {
		r.stopped = true
		return false
	}
	if !r.asked && now.After(r.check) {
		r.asked = true
		if sameCPU(r.s.cpus) {
			r.stopped = true
			return false
		}
	}
	return true
}

// hit is called after a poll that brought something: the spin starts anew.
func (r *spinRun) hit() {
	if r.stopped {
		return
	}
	r.end = time.Now().Add(r.limit)
	if r.engine {
		runtime.Gosched() // let those run whom the batch has woken
	}
}

// won is called when the spin has brought what it was for.
func (r *spinRun) won() {
	sp := &r.s.spin
	if !sp.learns(r) {
		sp.futile = 0
		return
	}
	var took time.Duration
	if r.n >= spinYield {
		took = time.Since(r.begin)
	}
	r.wonAfter(took)
}

// learns reports whether it matters how long the spin has taken.
func (sp *spinner) learns(r *spinRun) bool {
	return sp.tries() && (r.probe || sp.limit > baseSpin)
}

// wonAfter is won after so long a spin.
func (r *spinRun) wonAfter(took time.Duration) {
	sp := &r.s.spin
	sp.futile = 0
	if !sp.learns(r) {
		return
	}
	if !r.probe {
		sp.account(took)
	} else if sp.limit = min(max(baseSpin, 2*took), longSpin); sp.limit > baseSpin {
		sp.trial = trial{quick: max(baseSpin, took/2)}
	}
}

// lost is called after a spin that has not.
func (r *spinRun) lost() {
	if r.end.IsZero() {
		return // left out
	}
	sp := &r.s.spin
	if sp.futile++; sp.futile >= maxFutile {
		sp.limit = baseSpin
	}
	if sp.limit > baseSpin {
		sp.account(sp.limit)
	}
}

// account notes a wait under a limit that is on trial.
func (sp *spinner) account(took time.Duration) {
	t := &sp.trial
	if took > t.quick {
		t.slow++
	}
	if t.waits++; t.waits < trialWaits {
		return
	}
	if t.slow <= trialWaits/4 {
		t.bad, sp.every = 0, probeEvery
	} else if t.bad++; t.bad == trialWindows {
		sp.limit, sp.futile, sp.every = baseSpin, maxFutile, min(2*sp.every, probeRarely)
	}
	t.waits, t.slow = 0, 0
}

// sameCPU publishes our CPU and reports whether the peer runs on the same
// one: then it cannot go on while we spin.
func sameCPU(p cpuPublisher) bool {
	if p == nil {
		return false
	}
	cpu := currentCPU()
	p.PublishCPU(cpu)
	peer, ok := p.PeerCPU()
	return ok && peer == cpu
}
