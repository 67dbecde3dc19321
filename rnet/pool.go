package rnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

var (
	// decided keeps what dials have come to, for Explain and Stats.
	decided fallback.Journal
	// negatives remembers addresses where an accelerated dial failed lately.
	negatives = fallback.NewMemory(fallback.MemoryLimit, time.Now)
	// setUps limits the sessions that are dialed at once, and accepting those
	// that are accepted. A dial waits for the acceptor, so it must not stand in
	// one queue with it.
	setUps    = fallback.NewGate(maxSetUps)
	accepting = acceptances{work: fallback.NewGate(maxSetUps), most: mostWaitingNow}
)

const maxSetUps = 64

// poolKey names the sessions that one kind of dial shares.
type poolKey struct {
	network, address string
	transport        fallback.Transport
	device           fallback.Device
	dir              string
	allow            settings.Allow
	session          settings.Session
	lanes            int
	dedicated        bool
	resolver         *net.Resolver // the same name may stand for another address
	poller           *mux.Poller   // sessions of an event loop are its own
	socket           softcm.UnixSocket
}

// pool holds the sessions that this process has dialed and may open streams
// on.
var pool sessionPool

type sessionPool struct {
	// quickest maps a poolKey to its *laneSet, for look-ups without a lock; latest is the one
	// that was found last, perhaps not in the map any more: to compare two keys takes less than to
	// hash one.
	quickest sync.Map
	latest   atomic.Pointer[laneSet]
	kept     atomic.Int32 // sets that have come to quickest since all were dropped

	mu       sync.Mutex
	sessions map[sessionKey]*pendingSession
}

// sessionKey names one session: what a poolKey says, at one resolved address.
type sessionKey struct {
	addr      netip.AddrPort
	transport fallback.Transport
	device    fallback.Device
	dir       string
	allow     settings.Allow
	session   settings.Session
	lane      int
	poller    *mux.Poller
	socket    softcm.UnixSocket
}

// pendingSession is a session that is being set up, or there.
type pendingSession struct {
	begun time.Time
	here  bool // a process of this host listens at its address that we may connect to

	ready chan struct{} // closed when s or err is set
	s     *session
	err   error
	names []string // by which dials that were too early for it remember its address; guarded by the pool's mu
	step  atomic.Pointer[step]
}

// step is what the set-up of a session waits for.
type step struct {
	// busy reports whether it is about to come about, as far as one can tell: the
	// session stands in our queue or in the listener's, or the listener's process
	// takes what it is sent. A process that is stopped does not.
	busy func() bool
	// ran, if not nil, returns for how long the listener's process has run.
	ran func() uint64
	// queue is set where the session waits for others, of which there are too many.
	queue error
}

// waits says what the set-up waits for.
func (ps *pendingSession) waits(busy func() bool, queue error) {
	ps.step.Store(&step{busy: busy, queue: queue})
}

func always() bool { return true }
func never() bool  { return false }

// busy reports whether there is something to wait for.
func (ps *pendingSession) busy() bool {
	return ps.step.Load().busy()
}

// late is the error of a dial that does not wait for the session any longer.
func (ps *pendingSession) late(hs *fallback.HeadStart) error {
	err := hs.Err()
	if queue := ps.step.Load().queue; queue != nil {
		return fallback.Because(fallback.Admission, fmt.Errorf("%w: %w", err, queue))
	}
	if ps.here {
		return lateError{err}
	}
	return err
}

// lateError is a timeout in the set-up of a session with a process of this host.
// That one of the two was slow says nothing about the next moment, so it is not
// remembered. As long as a set-up goes on, a dial that comes after its head start does
// not wait for it again.
type lateError struct{ error }

func (e lateError) Unwrap() error { return e.error }

// laneSet is what a dial with the same words may use again.
type laneSet struct {
	key   poolKey
	lanes []atomic.Pointer[session]
	next  atomic.Uint32
	until time.Time // a name is looked up again after this; zero for addresses
}

// nameTime is how long what a name stands for is not looked up again while a
// session to it lives.
const nameTime = time.Second

// quick opens a stream on a session that lives, if there is one; nil if not.
func (p *sessionPool) quick(key *poolKey) *Conn {
	if key.dedicated {
		return nil
	}
	latest := p.latest.Load()
	if latest != nil && latest.key == *key {
		if c := latest.open(); c != nil {
			return c
		}
	}
	v, ok := p.quickest.Load(*key)
	if !ok || v == latest {
		return nil
	}
	set := v.(*laneSet)
	p.latest.Store(set)
	return set.open()
}

// open opens a stream on the session of the next lane; nil if it has none.
func (set *laneSet) open() *Conn {
	if !set.until.IsZero() && time.Now().After(set.until) {
		return nil
	}
	lane := 0
	if len(set.lanes) > 1 {
		lane = int(set.next.Add(1) % uint32(len(set.lanes)))
	}
	s := set.lanes[lane].Load()
	if s == nil {
		return nil
	}
	c, err := s.open()
	if err != nil {
		if errors.Is(err, net.ErrClosed) {
			set.lanes[lane].CompareAndSwap(s, nil)
		}
		return nil
	}
	return c
}

// openOptions are how a dial wants a stream opened. The zero value is for as long as its
// context lasts.
type openOptions struct {
	hs    *fallback.HeadStart                   // how long it waits, if not nil
	found func(ps *pendingSession)              // called before it waits, if not nil
	open  func(s *session) (c *Conn, err error) // in place of s.open, if not nil
}

// open opens a stream to addr, on a session that lives or a new one. If the
// session is too late it is returned too.
func (p *sessionPool) open(ctx context.Context, key poolKey, addr netip.AddrPort, a *attempt, o openOptions) (*Conn, *pendingSession, error) {
	set := p.lanes(key)
	lane := set.vacant()
	at := sessionKey{addr: addr, transport: key.transport, device: key.device, dir: key.dir, allow: key.allow, session: key.session, lane: lane, poller: key.poller, socket: key.socket}
	var before error // from the listener that went away, if it was known for one
	full := 0        // how many lanes had no room
	for try := 0; ; try++ {
		ps, err := p.pending(ctx, at, a)
		if err != nil {
			return nil, nil, worse(before, err)
		}
		if o.found != nil {
			o.found(ps)
		}
		if err := ps.await(ctx, o.hs); err != nil {
			if errors.Is(err, fallback.ErrTooSlow) {
				return nil, ps, err
			}
			if try < maxTries && lost(err) {
				if !errors.Is(err, rcm.ErrPeerDenied) {
					before = err
				}
				continue // to the next listener, if there is one
			}
			return nil, nil, err
		}
		c, err := ps.s.openWhenTold(ctx, o)
		switch {
		case err == nil && !key.dedicated:
			p.keep(key, set, lane, ps.s)
			return c, nil, nil
		case err == nil:
			return c, nil, nil
		case errors.Is(err, syscall.EAGAIN) && full < key.lanes-1:
			full++
			lane = (lane + 1) % key.lanes
			at.lane = lane
			try-- // the listener is there
			continue
		case !errors.Is(err, net.ErrClosed):
			return nil, nil, err
		case try == maxTries:
			return nil, nil, fallback.Because(fallback.PeerDied, errors.New("the peer ends each session at once"))
		}
		p.forget(at, ps.s) // it was just closing: make another
	}
}

// maxTries is how often a dial begins again at an address whose listener goes away
// meanwhile.
const maxTries = 4

// lost reports whether an error of a set-up says that the listener has gone
// away, not that there is none.
func lost(err error) bool {
	var rejected *rcm.RejectedError
	return fallback.Classify(err) == fallback.PeerDied || errors.Is(err, mux.ErrIdle) ||
		errors.As(err, &rejected) && rejected.Reason == rcm.ReasonInvalidService ||
		errors.Is(err, rcm.ErrPeerDenied) && errors.Is(err, syscall.ECONNRESET) // before it showed its key
}

// await waits until the session is there. Only a set-up that is still under way
// takes from the head start: for what a dial asks of a session that is there, it
// has all of it.
func (ps *pendingSession) await(ctx context.Context, hs *fallback.HeadStart) error {
	select {
	case <-ps.ready:
		return ps.err
	default:
	}
	var over <-chan time.Time
	if hs != nil {
		hs.Spend(time.Since(ps.begun))
		over = hs.Over()
	}
	for ran := uint64(0); ; {
		select {
		case <-ps.ready: // ended by setUp, which has a time limit
			return ps.err
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
		}
		select {
		case <-ps.ready: // at the same moment
			return ps.err
		default:
		}
		if at := ps.step.Load(); at.ran != nil {
			if now := at.ran(); now != ran {
				hs.Excuse() // it is at work on those before us, of which there may be a thousand
				ran = now
			}
		}
		if !hs.GoOn(ps.busy()) {
			return ps.late(hs)
		}
	}
}

// lanes returns the lane set of a key, or a new one if there is none or its
// name has to be looked up again (which has been done).
func (p *sessionPool) lanes(key poolKey) *laneSet {
	if v, ok := p.quickest.Load(key); ok {
		if set := v.(*laneSet); set.until.IsZero() || time.Now().Before(set.until) {
			return set
		}
	}
	set := &laneSet{key: key, lanes: make([]atomic.Pointer[session], key.lanes)}
	if _, err := netip.ParseAddrPort(key.address); err != nil {
		set.until = time.Now().Add(nameTime)
	}
	return set
}

// mostSets is roughly how many sets are kept: many names may lead to one session. Then all are
// dropped, and the next dial of each looks for its session under the lock.
const mostSets = 1024

// keep lets the next dial with the same words find s at once. Only sets with
// a session are kept: otherwise each address that was ever dialed would be.
func (p *sessionPool) keep(key poolKey, set *laneSet, lane int, s *session) {
	set.lanes[lane].Store(s)
	if v, ok := p.quickest.Load(key); !ok || v != set {
		if p.kept.Add(1) > mostSets {
			p.kept.Store(1)
			p.quickest.Clear()
		}
		p.quickest.Store(key, set)
	}
	if s.mux.Refused() != nil { // ended may not have seen the set
		p.quickest.CompareAndDelete(key, set)
	}
}

// vacant returns the first lane without a session, or else the next in turn.
func (set *laneSet) vacant() int {
	for i := range set.lanes {
		if set.lanes[i].Load() == nil {
			return i
		}
	}
	return int(set.next.Add(1) % uint32(len(set.lanes)))
}

// pending returns the session at an address. If there is none it looks which way
// leads to the address, and lets the session be set up. It waits for nobody.
func (p *sessionPool) pending(ctx context.Context, at sessionKey, a *attempt) (*pendingSession, error) {
	if !a.d.Dedicated {
		p.mu.Lock()
		ps := p.sessions[at]
		p.mu.Unlock()
		if ps != nil {
			return ps, nil
		}
	}
	w, err := a.look(ctx, at.addr)
	if err != nil {
		return nil, err
	}
	ps := &pendingSession{begun: time.Now(), here: w.isHere(), ready: make(chan struct{})}
	ps.waits(always, nil) // for a processor, to begin with
	if !a.d.Dedicated {
		p.mu.Lock()
		if other := p.sessions[at]; other != nil {
			p.mu.Unlock()
			w.close()
			return other, nil
		}
		if p.sessions == nil {
			p.sessions = make(map[sessionKey]*pendingSession)
		}
		p.sessions[at] = ps
		p.mu.Unlock()
	}
	go p.setUp(context.WithoutCancel(ctx), at, ps, a, w)
	return ps, nil
}

// setUpTime bounds the set-up of a session, and how long a dial waits for a session that is there
// to have an address. A set-up goes on when the dial that started it gives up: others may wait
// for it.
var setUpTime = 10 * time.Second // less in a test

func (p *sessionPool) setUp(ctx context.Context, at sessionKey, ps *pendingSession, a *attempt, w *way) {
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	defer region("rnet.session").End()
	var onEnd func(*session)
	if !a.d.Dedicated {
		onEnd = func(s *session) { p.ended(at, ps, s) }
	}
	s, err := connect(ctx, at.addr, a, w, ps, onEnd)
	p.mu.Lock() // for forget, which does not wait
	ps.s, ps.err = s, err
	names := ps.names
	p.mu.Unlock()
	switch {
	case err != nil:
		p.drop(at, ps)
	case a.d.Dedicated:
		s.mux.ExpireAfter(mux.IdleTime) // perhaps nobody waits for it any more
	default:
		s.mux.Left()
	}
	close(ps.ready)
	if err == nil { // it was slow, perhaps, and has come all the same
		for _, name := range append(names, a.remembered()) {
			negatives.Forget(name)
		}
	}
}

// outdate lets what is remembered under a name, because ps was not there in time, be forgotten when it is.
func (p *sessionPool) outdate(name string, ps *pendingSession) {
	if _, remembered := negatives.Recall(name); !remembered {
		return
	}
	p.mu.Lock()
	there := ps.s != nil
	if !there {
		ps.names = append(ps.names, name)
	}
	p.mu.Unlock()
	if there {
		negatives.Forget(name)
	}
}

func (p *sessionPool) drop(at sessionKey, ps *pendingSession) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions[at] == ps {
		delete(p.sessions, at)
	}
}

// ended takes a session out that takes no more streams.
func (p *sessionPool) ended(at sessionKey, ps *pendingSession, s *session) {
	p.drop(at, ps)
	p.quickest.Range(func(key, v any) bool {
		set := v.(*laneSet)
		live := false
		for i := range set.lanes {
			if !set.lanes[i].CompareAndSwap(s, nil) && set.lanes[i].Load() != nil {
				live = true
			}
		}
		if !live {
			p.quickest.CompareAndDelete(key, set)
		}
		return true
	})
}

// forget takes s out of the pool, if it is still there.
func (p *sessionPool) forget(at sessionKey, s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ps := p.sessions[at]; ps != nil && ps.s == s {
		delete(p.sessions, at)
	}
}
