package wait

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// Where many more sessions are in use than there are processors, most of their owners sleep while
// a few poll. The peers of these are answered at once, and send again at once; all others are
// found late, for milliseconds, by a wake-up that the pollers keep from a CPU. So there the owners
// hand their locks over to shared pollers, and park.
var (
	sharedPollers = make([]sharedPoller, max(1, procs/2))
	nextShared    atomic.Uint32 // the poller of the next lock
	sharedActive  atomic.Int32  // pollers whose goroutine runs
)

// sharedPoller owns the locks of many sessions, and polls one after the other in a goroutine. A lock of
// which it finds a message has a slice, in which it polls that alone: a peer that is awake is answered
// without a wake-up. So all have their share, and most messages of a slice come fast.
//
// Who needs a lock that the poller owns parks, leaves a note, or asks for it. The poller leaves the lock
// for the last two.
type sharedPoller struct {
	_         [64]byte     // owners read what follows, and the poller writes what comes after
	notBefore atomic.Int64 // until then no lock is taken, as now tells it: polling has not paid
	offers    atomic.Bool  // offered is not empty
	_         [64]byte

	mu      sync.Mutex
	running bool
	offered []*Lock // by their owners

	// Of the goroutine.
	locks   []sharedLock
	t       time.Duration // the present time
	yielded time.Duration // when other threads of the CPU had their last chance
	left    time.Duration // to poll without finding anything
	pause   time.Duration // the last one
	account
}

// account is what a poller has done since it was settled last. Of longer times than longPoll between two
// looks only that counts as polling.
type account struct {
	since  time.Duration // when that was
	polled time.Duration // in all, also before
	begun  time.Duration // polled at since
	vain   time.Duration // polled without finding anything
	hits   int           // polls that have found something
}

type sharedLock struct {
	lock      *Lock
	hit       time.Duration // polled when a poll found something
	skips     int           // polls that find something and are not to begin a slice
	lastSkips int           // how many these were the last time, 0 after a slice that paid
}

const (
	// sharedMany is how many locks for each processor are in use where owners begin to hand them over.
	// Fewer share the processors well enough, and are faster without a goroutine between.
	sharedMany = 4

	// sharedSpin is how long a poller polls without finding anything. It leaves all locks then, and also
	// where it finds something for no more locks than the processors that it stands for.
	sharedSpin = 50 * time.Microsecond
	// sharedIdle is how long it polls a lock for which nothing comes.
	sharedIdle = 10 * time.Millisecond

	// Each sharedAccount, and at the end, a poller sees whether polling was dearer than the
	// wake-ups that it saved. Then no lock is handed over for a while, which gets longer.
	sharedAccount  = 20 * time.Millisecond
	sharedMinPause = time.Millisecond
	sharedMaxPause = 128 * time.Millisecond

	// A slice ends after sharedSlice, or its part of sharedSlices, which is for all locks, or when nothing
	// has come for sliceSpin: a peer that slept needs that to send again. If messages were
	// further apart than slicePays, the next minSkips to maxSkips polls that find something begin none.
	sharedSlice  = 300 * time.Microsecond
	sharedSlices = 4 * time.Millisecond
	sliceSpin    = 30 * time.Microsecond
	slicePays    = 10 * time.Microsecond
	minSkips     = 8
	maxSkips     = 16

	// sharedYield is how long nothing has come when the poller begins to give way to other threads of its
	// CPU: peers are among them, and there may be many.
	sharedYield = 10 * time.Microsecond

	// longPoll is the most that a batch of polls counts as polling: if it took longer other goroutines ran,
	// or other threads.
	longPoll = 5 * time.Microsecond
)

// inUse counts the locks whose owners wait. All of them read it, each time.
var inUse struct {
	_ [64]byte
	counter
	_ [64]byte
}

// shares reports whether the owner is to hand the lock over at t.
func (l *Lock) shares(t time.Duration) bool {
	if l.policy.profile == fallback.Latency || l.cfg.Local || l.cfg.Wire {
		return false
	}
	l.policy.sessions = inUse.join(&l.policy.used, t)
	if l.policy.profile == fallback.Efficient || l.policy.sessions <= sharedMany*procs && sharedActive.Load() == 0 {
		return false
	}
	if l.shared == nil {
		l.shared = &sharedPollers[nextShared.Add(1)%uint32(len(sharedPollers))]
	}
	return int64(t) >= l.shared.notBefore.Load()
}

// offer hands l over to the poller. The caller owns it, and is parked there.
func (p *sharedPoller) offer(l *Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, l)
	p.offers.Store(true)
	if !p.running {
		p.running = true
		sharedActive.Add(1)
		go p.run() // ends when it has left all locks
	}
}

func (p *sharedPoller) run() {
	defer region("rnet.poller").End()
	pollers.Add(1)
	defer pollers.Add(-1)
	p.t = now()
	for p.take() {
		p.poll()
	}
}

// take takes the locks that were offered. It returns false, and the goroutine ends, if it has
// none.
func (p *sharedPoller) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.offered {
		p.locks = append(p.locks, sharedLock{lock: l, hit: p.polled})
	}
	clear(p.offered)
	p.offered = p.offered[:0]
	p.offers.Store(false)
	if p.running = len(p.locks) > 0; !p.running {
		sharedActive.Add(-1)
	}
	return p.running
}

// poll polls as long as that is of use, and leaves all locks.
func (p *sharedPoller) poll() {
	p.left, p.since, p.begun = sharedSpin, p.t, p.polled
	for p.left > 0 && len(p.locks) > 0 {
		if p.offers.Load() {
			p.take()
		}
		p.round()
		if p.t-p.since >= sharedAccount {
			few := p.found() <= max(1, procs/len(sharedPollers))
			if !p.settle() || few {
				break
			}
		}
	}
	p.settle()
	for i := range p.locks {
		p.locks[i].leave()
	}
	clear(p.locks)
	p.locks = p.locks[:0]
	p.t = now()
}

// found returns of how many locks something was found since the account was settled, or that came since.
func (p *sharedPoller) found() (n int) {
	for i := range p.locks {
		if p.locks[i].hit >= p.begun {
			n++
		}
	}
	return n
}

// settle settles the account. It returns false, and no lock is handed over for a while, if polling has not paid.
func (p *sharedPoller) settle() bool {
	paid := p.vain <= time.Duration(p.hits)*engineCheap
	switch {
	case !paid:
		p.pause = min(max(2*p.pause, sharedMinPause), sharedMaxPause)
		p.notBefore.Store(int64(p.t + p.pause))
	case p.hits > 0:
		p.pause = 0
	}
	p.since, p.begun, p.vain, p.hits = p.t, p.polled, 0, 0
	return paid
}

// round polls each lock once.
func (p *sharedPoller) round() {
	found := false
	for i := 0; i < len(p.locks); i++ {
		if i%pollBatch == pollBatch-1 {
			p.giveWay(found)
			found = false
		}
		s := &p.locks[i]
		if s.lock.poll() > 0 {
			p.hits++
			s.hit = p.polled
			if s.skips > 0 {
				s.skips--
				found = true
			} else {
				p.pollOne(s)
			}
		}
		if p.polled-s.hit > sharedIdle || s.lock.word.load().has(noted|asked) {
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

// pollOne gives a lock its slice. Something has been found for it.
func (p *sharedPoller) pollOne(s *sharedLock) {
	if peer := s.lock.cfg.Peer; peer != nil {
		peer.PublishCPU(currentCPU()) // it polls if it has another one
	}
	begin := p.t // what others use of the slice now is not given back: the machine is busy
	end := begin + min(sharedSlice, sharedSlices/time.Duration(len(p.locks)))
	p.giveWay(true)
	hits := 0
	for left := sliceSpin; left > 0 && p.t < end; {
		if s.lock.poll() > 0 {
			hits++
			p.giveWay(true)
			left = sliceSpin
		} else {
			left -= p.giveWay(false)
		}
	}
	p.hits += hits
	s.hit = p.polled
	if p.t-begin < time.Duration(hits)*slicePays {
		s.lastSkips = 0
		return
	}
	s.lastSkips = min(2*s.lastSkips+minSkips, maxSkips)
	s.skips = s.lastSkips
}

// giveWay lets those run whom polls have woken, and all others. It returns how long was polled since the last
// time, 0 if something was found. Unlike an owner it looks after sockets however few poll: what it finds keeps
// all other processors busy.
func (p *sharedPoller) giveWay(found bool) (vain time.Duration) {
	begin := p.t
	runtime.Gosched()
	if p.t = now(); netpoll.due(p.t) {
		netpoll.look()
		p.t = now()
	}
	took := min(p.t-begin, longPoll)
	p.polled += took
	if found {
		p.left = sharedSpin
		return 0
	}
	p.left -= took
	p.vain += took
	if p.left < sharedSpin-sharedYield && p.t-p.yielded >= cpuYield {
		yieldCPU()
		p.t = now()
		p.yielded = p.t
	}
	return took
}

// leave leaves the lock armed: nobody may come back to it soon, and the sweep need not look.
func (s *sharedLock) leave() {
	s.lock.word.note()
	s.lock.leave()
}
