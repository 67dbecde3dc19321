package wait

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// Where many more sessions are in use than there are processors, most of their owners sleep while
// a few poll. The peers of these are answered at once, and send again at once; all others are
// found late, for milliseconds, by a wake-up that the pollers keep from a CPU. So there the owners
// hand their locks over to shared pollers, and park.
var sharedPollers = make([]sharedPoller, max(1, procs/2))

var nextShared atomic.Uint32 // the poller of the next lock

// sharedPoller owns the locks of many sessions, and polls one after the other in a goroutine. Of
// whom it finds a message it polls on for a while: a peer that is awake is answered without
// a wake-up. So all of them have their turns, and most messages of a turn come fast.
//
// Who needs a lock that the poller owns parks, or leaves a note: then the poller leaves the lock.
type sharedPoller struct {
	closed atomic.Int64 // until when no lock is taken, as now tells it: polling has not paid
	active atomic.Bool  // the goroutine polls
	offers atomic.Bool  // offered is not empty

	mu      sync.Mutex
	running bool
	offered []*Lock // by their owners

	// Of the goroutine.
	policy  policy // for giveWay
	locks   []sharedLock
	t       time.Duration // the present time
	left    time.Duration // to poll without finding anything
	vain    time.Duration // polled without finding anything, since it began
	hits    int           // polls that have found something since then
	yielded time.Duration // to other threads of the CPU
	pause   time.Duration // the last one
}

type sharedLock struct {
	lock  *Lock
	hit   time.Duration // when a poll brought something
	skips int           // messages of the peer that are not to begin a turn
	slow  int           // bound of skips, after the last turn that was in vain
}

const (
	// sharedMany is how many locks for each processor are in use where owners begin to hand them over.
	// Fewer share the processors well enough, and are faster without a goroutine between.
	sharedMany = 4

	// sharedSpin is how long the poller polls without finding anything. It leaves all locks then. If
	// that was dearer than the wake-ups that it saved it takes none for a while, which gets longer.
	sharedSpin     = 50 * time.Microsecond
	sharedMinPause = time.Millisecond
	sharedMaxPause = 128 * time.Millisecond

	// sharedIdle is how long a lock stays for which nothing comes, while others are in use.
	sharedIdle = 10 * time.Millisecond

	// A turn ends after sharedTurn, or when all turns together take sharedTurns, or when nothing has come
	// for turnSpin: a peer that slept needs that to send again. It was in vain if messages were
	// further apart than turnPays: then the next ones of that peer, up to maxSkips, begin none.
	sharedTurn  = 300 * time.Microsecond
	sharedTurns = 4 * time.Millisecond
	turnSpin    = 30 * time.Microsecond
	turnPays    = 10 * time.Microsecond
	minSkips    = 8
	maxSkips    = 16

	// sharedYield is how long nothing has come when the poller begins to give way to other threads of its CPU:
	// peers are among them, and there may be many.
	sharedYield = 10 * time.Microsecond

	// longPoll is the most that one look at a lock, or at all, counts as polling: if it took longer
	// other goroutines ran, or other threads.
	longPoll = 5 * time.Microsecond
)

// inUse counts the locks that have an owner who waits.
var inUse counter

// shares reports whether the owner is to hand the lock over at t.
func (l *Lock) shares(t time.Duration) bool {
	if l.policy.profile != fallback.Balanced || l.cfg.Local || l.cfg.Wire {
		return false
	}
	many := inUse.join(&l.policy.used, t) > sharedMany*procs
	return (many || l.shared.active.Load()) && int64(t) >= l.shared.closed.Load()
}

// offer hands l over to the poller. The caller owns it, and is parked there.
func (p *sharedPoller) offer(l *Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, l)
	p.offers.Store(true)
	if !p.running {
		p.running = true
		go p.run() // ends when nothing has come for sharedSpin
	}
}

func (p *sharedPoller) run() {
	defer region("rnet.poller").End()
	pollers.Add(1)
	p.active.Store(true)
	p.t = now()
	for p.take() {
		p.poll()
	}
	pollers.Add(-1)
}

// take takes the locks that were offered. It returns false, and the goroutine ends, if it has
// none.
func (p *sharedPoller) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.offered {
		p.locks = append(p.locks, sharedLock{lock: l, hit: p.t})
	}
	clear(p.offered)
	p.offered = p.offered[:0]
	p.offers.Store(false)
	if p.running = len(p.locks) > 0; !p.running {
		p.active.Store(false)
	}
	return p.running
}

// poll polls until nothing has come for sharedSpin, and leaves all locks.
func (p *sharedPoller) poll() {
	p.left, p.vain, p.hits = sharedSpin, 0, 0
	for p.left > 0 {
		if p.offers.Load() {
			p.take()
		}
		p.round()
	}
	if p.vain <= time.Duration(p.hits)*engineCheap {
		p.pause = 0
	} else {
		p.pause = min(max(2*p.pause, sharedMinPause), sharedMaxPause)
		p.closed.Store(int64(p.t + p.pause))
	}
	for i := range p.locks {
		p.locks[i].leave()
	}
	clear(p.locks)
	p.locks = p.locks[:0]
	p.t = now()
}

// round looks at each lock once.
func (p *sharedPoller) round() {
	found := false
	for i := 0; i < len(p.locks); i++ {
		s := &p.locks[i]
		if s.lock.poll() > 0 {
			p.hits++
			s.hit = p.t
			if s.skips > 0 {
				s.skips--
				found = true
			} else {
				p.turn(s)
			}
		}
		if p.t-s.hit > sharedIdle || s.lock.word.load().has(noted) {
			s.leave()
			last := len(p.locks) - 1
			p.locks[i] = p.locks[last]
			p.locks[last] = sharedLock{}
			p.locks = p.locks[:last]
			i--
		}
	}
	p.giveWay(found)
}

// turn polls one lock, for which something has come.
func (p *sharedPoller) turn(s *sharedLock) {
	begin := p.t
	end := begin + min(sharedTurn, sharedTurns/time.Duration(len(p.locks)))
	p.giveWay(true)
	hits := 0
	for left := turnSpin; left > 0 && p.t < end; {
		if s.lock.poll() > 0 {
			hits++
			p.giveWay(true)
			left = turnSpin
		} else {
			left -= p.giveWay(false)
		}
	}
	p.hits += hits
	s.hit = p.t
	if p.t-begin < time.Duration(hits)*turnPays {
		s.slow = 0
		return
	}
	s.slow = min(2*s.slow+minSkips, maxSkips)
	s.skips = s.slow
}

// giveWay lets those run whom a poll has woken, and all others. It returns how long was polled in vain.
func (p *sharedPoller) giveWay(found bool) (vain time.Duration) {
	begin := p.t
	p.t = p.policy.giveWay()
	if found {
		p.left = sharedSpin
		return 0
	}
	vain = min(p.t-begin, longPoll)
	p.left -= vain
	p.vain += vain
	if p.left < sharedSpin-sharedYield && p.t-p.yielded >= cpuYield {
		yieldCPU()
		p.t = now()
		p.yielded = p.t
	}
	return vain
}

// leave leaves the lock armed: many may wait there.
func (s *sharedLock) leave() {
	s.lock.word.note()
	s.lock.leave()
}
