package rnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
)

var (
	// decided keeps what dials have come to, for Explain and Stats.
	decided fallback.Journal
	// negatives remembers addresses where an accelerated dial failed lately.
	negatives = fallback.NewMemory(fallback.MemoryLimit, time.Now)
	// setUps limits the sessions that are set up at once, by either side.
	setUps = fallback.NewGate(64)
)

// poolKey names the sessions that one kind of dial shares.
type poolKey struct {
	network, address string
	transport        fallback.Transport
	device           fallback.Device
	session          sessionConfig
	lanes            int
	dedicated        bool
	resolver         *net.Resolver // the same name may stand for another address
	poller           *poller       // sessions of an event loop are its own
}

// pool holds the sessions that this process has dialed and may open streams
// on.
var pool sessionPool

type sessionPool struct {
	// quickest maps a poolKey to its *laneSet, for look-ups without a lock.
	quickest sync.Map

	mu     sync.Mutex
	places map[placeKey]*place
}

// placeKey names one session: what a poolKey says, at one resolved address.
type placeKey struct {
	addr      netip.AddrPort
	transport fallback.Transport
	device    fallback.Device
	session   sessionConfig
	lane      int
	poller    *poller
}

// place is where a session is, or is being set up.
type place struct {
	ready chan struct{} // closed when s or err is set
	s     *session
	err   error
}

// laneSet is what a dial with the same words may use again.
type laneSet struct {
	lanes []atomic.Pointer[session]
	next  atomic.Uint32
	until time.Time // a name is looked up again after this; zero for addresses
}

// nameTime is how long what a name stands for is not looked up again while a
// session to it lives.
const nameTime = time.Second

// quick opens a stream on a session that lives, if there is one; nil if not.
func (p *sessionPool) quick(key poolKey) *Conn {
	if key.dedicated {
		return nil
	}
	v, ok := p.quickest.Load(key)
	if !ok {
		return nil
	}
	set := v.(*laneSet)
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
		if !errors.Is(err, errNoSlot) {
			set.lanes[lane].CompareAndSwap(s, nil)
		}
		return nil
	}
	return c
}

// open opens a stream to addr, on a session that lives or a new one.
func (p *sessionPool) open(ctx context.Context, key poolKey, addr netip.AddrPort, a *attempt) (*Conn, error) {
	if key.dedicated {
		s, err := connect(ctx, addr, a, nil)
		if err != nil {
			return nil, err
		}
		return s.openWhenTold(ctx)
	}
	set := p.lanes(key)
	lane := set.vacant()
	at := placeKey{addr: addr, transport: key.transport, device: key.device, session: key.session, lane: lane, poller: key.poller}
	for try := 0; ; try++ {
		s, err := p.session(ctx, at, a)
		if err != nil {
			return nil, err
		}
		c, err := s.openWhenTold(ctx)
		if err == nil {
			p.keep(key, set, lane, s)
			return c, nil
		}
		if !errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if try == 2 {
			return nil, fallback.Because(fallback.PeerRejected, errors.New("the peer ends each session at once"))
		}
		p.forget(at, s) // it was just closing: make another
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
	set := &laneSet{lanes: make([]atomic.Pointer[session], key.lanes)}
	if _, err := netip.ParseAddrPort(key.address); err != nil {
		set.until = time.Now().Add(nameTime)
	}
	return set
}

// keep lets the next dial with the same words find s at once. Only sets with
// a session are kept: otherwise each address that was ever dialed would be.
func (p *sessionPool) keep(key poolKey, set *laneSet, lane int, s *session) {
	set.lanes[lane].Store(s)
	if v, ok := p.quickest.Load(key); !ok || v != set {
		p.quickest.Store(key, set)
	}
	if s.refused() != nil { // ended may not have seen the set
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

// session returns the session at a place. The first to ask sets it up, the
// others wait for it.
func (p *sessionPool) session(ctx context.Context, at placeKey, a *attempt) (*session, error) {
	p.mu.Lock()
	pl := p.places[at]
	if pl == nil {
		pl = &place{ready: make(chan struct{})}
		if p.places == nil {
			p.places = make(map[placeKey]*place)
		}
		p.places[at] = pl
		go p.setUp(context.WithoutCancel(ctx), at, pl, a)
	}
	p.mu.Unlock()
	select {
	case <-pl.ready: // ended by setUp, which has a time limit
		return pl.s, pl.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// setUpTime bounds the set-up of a session. It goes on when the dial that
// started it gives up: others may wait for it.
const setUpTime = 10 * time.Second

func (p *sessionPool) setUp(ctx context.Context, at placeKey, pl *place, a *attempt) {
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	defer region("rnet.session").End()
	s, err := connect(ctx, at.addr, a, func(s *session) { p.ended(at, pl, s) })
	p.mu.Lock() // for forget, which does not wait
	pl.s, pl.err = s, err
	p.mu.Unlock()
	if err != nil {
		p.drop(at, pl)
	} else {
		negatives.Forget(a.remembered()) // it was slow, and has come all the same
		pl.s.left()                      // perhaps nobody waits for it any more
	}
	close(pl.ready)
}

func (p *sessionPool) drop(at placeKey, pl *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.places[at] == pl {
		delete(p.places, at)
	}
}

// ended takes a session out that takes no more streams.
func (p *sessionPool) ended(at placeKey, pl *place, s *session) {
	p.drop(at, pl)
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

// forget takes s out of its place, if it is still there.
func (p *sessionPool) forget(at placeKey, s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.places[at]; pl != nil && pl.s == s {
		delete(p.places, at)
	}
}

// connect sets up a session to addr, over the first fabric that reaches it.
// onEnd, if set, is called when it takes no more streams.
func connect(ctx context.Context, addr netip.AddrPort, a *attempt, onEnd func(*session)) (*session, error) {
	var lastErr error
	for _, f := range a.set.fabrics() {
		s, err := connectOver(ctx, f, addr, a, onEnd)
		if err == nil {
			return s, nil
		}
		lastErr = worse(lastErr, because(f.transport, err))
		if ctx.Err() != nil {
			break // the others would only say that it is too late
		}
	}
	if lastErr == nil {
		lastErr = fallback.Because(fallback.NoDevice, rcm.ErrNoRoute)
	}
	return nil, lastErr
}

func connectOver(ctx context.Context, f fabric, addr netip.AddrPort, a *attempt, onEnd func(*session)) (*session, error) {
	route, err := f.Resolve(ctx, f.at(addr))
	if err != nil {
		return nil, err
	}
	if !setUps.TryEnter() {
		route.Close()
		return nil, fallback.Because(fallback.Admission, errors.New("too many sessions are being set up"))
	}
	defer setUps.Leave()
	cfg := a.set.session
	if a.d.Dedicated {
		cfg.maxStreams = 1 // so the listener sets no addresses aside for more
	}
	s, err := newSession(route.Device(), cfg, a.set.log)
	if err != nil {
		route.Close()
		return nil, err
	}
	s.dialed, s.dedicated = true, a.d.Dedicated
	s.transport, s.onEnd = f.transport, onEnd
	s.goesOver(route.Port())
	s.setLoop(a.poller)
	conn, err := route.Connect(ctx, s.qp, s.connParam())
	if err != nil {
		if s.notices != nil {
			// siw connects in the kernel, where nothing ends it but TCP, after
			// two minutes, and a QP is not destroyed before.
			go s.abandon()
		} else {
			s.abandon()
		}
		return nil, err
	}
	if err := s.learn(conn.PrivateData()); err != nil {
		conn.Disconnect()
		s.abandon()
		return nil, err
	}
	s.localAddr, s.remoteAddr = conn.LocalAddr(), netip.AddrPortFrom(conn.RemoteAddr().Addr(), addr.Port())
	if err := s.start(ctx, conn); err != nil {
		return nil, err
	}
	if s.poller != nil {
		s.poller.add(s)
	}
	return s, nil
}

// worse chooses which of two failures a dial tells of: the one that says more,
// the later one if both say as much.
func worse(before, err error) error {
	if before == nil || saying(err) >= saying(before) {
		return err
	}
	return before
}

// saying ranks failures by how near the fabric has come to the peer. What a
// fabric says that is meant for other devices counts least. That something is
// missing on the way over a device tells more than that the peer is no process
// of this host; but who is one and does not listen needs no device.
func saying(err error) int {
	switch reason := fallback.Classify(err); {
	case errors.Is(err, rcm.ErrOtherDevice):
		return 0
	case reason == fallback.NotLocal:
		return 1
	case errors.Is(err, rcm.ErrNoRoute):
		return 2
	case reason == fallback.NoListener:
		return 3
	}
	return 4
}
