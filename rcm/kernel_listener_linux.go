package rcm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// The acceptor's side, up to Accept. A listener has an ear for each address:
// an id that listens there. A wildcard listener has one for every address of
// the host that a device of the fabric has; rdma_cm has wildcards of its own,
// but those listen on all devices of the host. Ours has to leave out those that
// the fabric does not use: iWARP is to be at another port than the rest, since
// TCP has this one there, and that would make the whole wildcard fail.
//
// One goroutine takes what the ears hear, and opens ears again after a device
// or address has gone and come. Handshakes need no goroutine: the kernel has
// done its part when it reports a request, and the rest is Accept's.

// earBacklog is how many requests the kernel keeps for us to read. Accept's
// queue is our own.
const earBacklog = 256

// maxHeard is how many requests that have been read may wait to be looked at.
const maxHeard = 1024

// rescan is how often the listener looks whether addresses or devices have
// come.
const rescan = time.Second

// settle is for how many ticks after a change it looks again: a device that
// has come has no addresses at first.
const settle = 10

// Listen makes ids that listen on addr.
func (f *kernelFabric) Listen(addr netip.AddrPort, cfg ListenConfig) (Listener, error) {
	l, err := f.listen(addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("rcm: listen on %v: %w", addr, err)
	}
	return l, nil
}

func (f *kernelFabric) listen(addr netip.AddrPort, cfg ListenConfig) (*kernelListener, error) {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	switch {
	case !addr.Addr().IsValid() || addr.Port() == 0:
		return nil, fmt.Errorf("%w: needs an address and a port", verbs.ErrInvalid)
	case addr.Addr().IsLoopback():
		return nil, fmt.Errorf("%w: loopback address", ErrNoRoute)
	case cfg.Backlog < 0 || cfg.HandshakeTimeout < 0:
		return nil, fmt.Errorf("%w: backlog %d, handshake timeout %v", verbs.ErrInvalid, cfg.Backlog, cfg.HandshakeTimeout)
	case cfg.Device != "" && f.cfg.Device != "" && cfg.Device != f.cfg.Device:
		return nil, fmt.Errorf("%w: listener on %s of a fabric on %s", verbs.ErrInvalid, cfg.Device, f.cfg.Device)
	}
	fabric := &kernelFabric{f.cfg}
	fabric.cfg.Device = cmp.Or(cfg.Device, f.cfg.Device)
	if err := fabric.anyDevice(); err != nil {
		return nil, err
	}
	l := &kernelListener{
		fabric:  fabric,
		addr:    addr,
		v6Only:  cfg.V6Only,
		timeout: cmp.Or(cfg.HandshakeTimeout, defaultHandshakeTimeout),
		queue:   make(chan *kernelRequest, cmp.Or(cfg.Backlog, defaultBacklog)),
		closed:  make(chan struct{}),
		wake:    make(chan struct{}, 1),
		ears:    make(map[netip.Addr]*cmID),
		arrived: cfg.Arrived,
	}
	if l.arrived == nil {
		l.arrived = func() {}
	}
	if err := l.openEars(); err != nil {
		l.closeEars()
		return nil, err
	}
	l.running.Add(1)
	go l.serve()
	return l, nil
}

type kernelListener struct {
	fabric  *kernelFabric
	addr    netip.AddrPort
	v6Only  bool
	timeout time.Duration
	queue   chan *kernelRequest // for Accept; never blocks its sender
	closed  chan struct{}       // closed by Close, and when the listener fails
	once    sync.Once           // closes closed
	failure error               // set before closed is closed
	arrived func()              // ListenConfig.Arrived
	running sync.WaitGroup      // the serving goroutine

	// ears are the ids that listen, seen what the host was like when they
	// were opened, and again for how many ticks more to look for what is
	// missing. They belong to the serving goroutine.
	ears  map[netip.Addr]*cmID
	seen  string
	again int

	wake chan struct{} // has a token when heard or deaf may not be empty
	mu   sync.Mutex
	// heard are the requests that the serving goroutine has not taken, at most
	// maxHeard, deaf the ears that were lost; guarded by mu.
	heard []cmEvent
	deaf  []netip.Addr
	shut  bool // guarded by mu; nobody takes what is heard any more

	requests, overflows atomic.Uint64
}

func (l *kernelListener) Addr() netip.AddrPort { return l.addr }

func (l *kernelListener) Stats() ListenStats {
	return ListenStats{Requests: l.requests.Load(), Overflows: l.overflows.Load()}
}

func (l *kernelListener) Accept(ctx context.Context) (Request, error) {
	// A closed listener gives no request, however many wait.
	select {
	case <-l.closed:
		return nil, l.wrap(l.failure)
	default:
	}
	select {
	case r := <-l.queue: // it comes before the end of ctx
		return r, nil
	default:
	}
	// Ends with a request, Close or ctx.
	select {
	case r := <-l.queue:
		return r, nil
	case <-l.closed:
		return nil, l.wrap(l.failure)
	case <-ctx.Done():
		return nil, l.wrap(contextError(ctx))
	}
}

func (l *kernelListener) wrap(err error) error {
	return fmt.Errorf("rcm: accept on %v: %w", l.addr, err)
}

func (l *kernelListener) Close() error {
	l.end(net.ErrClosed)
	l.running.Wait() // ends: the goroutine only gives commands that the kernel answers at once
	return nil
}

// end makes Accept fail from now on, and the serving goroutine end.
func (l *kernelListener) end(err error) {
	l.once.Do(func() {
		l.failure = err
		close(l.closed)
		l.arrived()
	})
}

// serve turns what is heard into requests, until Close.
func (l *kernelListener) serve() {
	defer l.running.Done()
	defer l.shutDown()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	for {
		// Ends with something heard, an ear lost, the tick or Close.
		select {
		case <-l.wake:
			l.take()
		case <-tick.C:
			l.reopen()
		case <-l.closed:
			return
		}
	}
}

func (l *kernelListener) shutDown() {
	l.closeEars()
	l.mu.Lock()
	l.shut = true
	heard := l.heard
	l.heard = nil
	l.mu.Unlock()
	for _, ev := range heard {
		refuseID(ev.conn, ReasonInvalidService)
	}
	for {
		select {
		case r := <-l.queue:
			refuseID(r.id, ReasonInvalidService)
		default:
			return
		}
	}
}

// hear is called by the reader of events.
func (l *kernelListener) hear(at netip.Addr, ev cmEvent) {
	switch ev.kind {
	case eventConnectRequest:
		if reason := l.hearRequest(ev); reason != 0 {
			// Here and now, so that no flood of requests is read faster than
			// it is refused. The kernel waits for nobody to do it.
			refuseID(ev.conn, reason)
			return
		}
	case eventLost:
		l.end(ev.lost) // another descriptor would fare no better
	case eventDeviceRemoval:
		l.mu.Lock()
		l.deaf = append(l.deaf, at)
		l.mu.Unlock()
	default:
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// hearRequest keeps a request for the serving goroutine, or says why not.
func (l *kernelListener) hearRequest(ev cmEvent) (refusal uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.shut:
		return ReasonInvalidService
	case len(l.heard) == maxHeard:
		l.overflows.Add(1)
		return ReasonNoResources
	}
	l.heard = append(l.heard, ev)
	return 0
}

// take queues what was heard, and closes ears that are lost.
func (l *kernelListener) take() {
	l.mu.Lock()
	heard, deaf := l.heard, l.deaf
	l.heard, l.deaf = nil, nil
	l.mu.Unlock()
	for _, at := range deaf {
		if id := l.ears[at]; id != nil {
			delete(l.ears, at)
			id.destroy()
		}
		l.again = settle
	}
	for _, ev := range heard {
		l.request(ev)
	}
}

// request queues one request, or refuses it.
func (l *kernelListener) request(ev cmEvent) {
	r, err := newKernelRequest(ev, l)
	if err != nil {
		// The peer has gone already, its device has, or this process is short
		// of descriptors.
		l.overflows.Add(1)
		refuseID(ev.conn, ReasonNoResources)
		return
	}
	if len(l.queue) == cap(l.queue) {
		l.overflows.Add(1)
		refuseID(ev.conn, ReasonNoResources)
		return
	}
	// Whoever takes it finds it counted.
	l.requests.Add(1)
	l.queue <- r // does not block: nobody else sends
	l.arrived()
}

func (l *kernelListener) closeEars() {
	for at, id := range l.ears {
		delete(l.ears, at)
		id.destroy()
	}
}

// serves reports whether an address of the host is among those that the
// listener is for.
func (l *kernelListener) serves(ip netip.Addr) bool {
	here := l.addr.Addr()
	switch {
	case here == netip.IPv6Unspecified():
		return ip.Is6() || !l.v6Only
	case here == netip.IPv4Unspecified():
		return ip.Is4()
	}
	return ip == here
}

// openEars opens what is missing. The error is about the first address that
// could have had an ear but for somebody else's; it wraps ErrNoRoute if no
// device has any of the addresses.
func (l *kernelListener) openEars() error {
	host, addrs, err := hostState()
	if err != nil {
		return err
	}
	var firstErr error
	for _, at := range addrs {
		if l.ears[at] != nil || !l.serves(at) {
			continue
		}
		id, err := l.openEar(at)
		switch {
		case err == nil:
			l.ears[at] = id
		case !errors.Is(err, ErrNoRoute) && firstErr == nil:
			firstErr = err
		}
	}
	l.seen = host
	if firstErr != nil {
		l.again = settle // what is taken now may be free later
		return firstErr
	}
	if len(l.ears) == 0 {
		return fmt.Errorf("%w: none that may be used has this address", ErrNoRoute)
	}
	return nil
}

// reopen opens ears where addresses or devices have come or an ear was lost,
// and closes those whose address has gone.
func (l *kernelListener) reopen() {
	host, addrs, err := hostState()
	switch {
	case err != nil:
		return // the process is short of descriptors, say; the ears stay
	case host != l.seen:
		l.again = settle
	case l.again == 0:
		return
	}
	l.again--
	there := make(map[netip.Addr]bool, len(addrs))
	for _, at := range addrs {
		there[at] = true
	}
	for at, id := range l.ears {
		if !there[at] {
			delete(l.ears, at)
			id.destroy()
		}
	}
	_ = l.openEars() // what it could not open it tries at the next tick
}

// openEar makes an id listen on one address.
func (l *kernelListener) openEar(at netip.Addr) (*cmID, error) {
	id, err := newCMID()
	if err != nil {
		return nil, err
	}
	if err := l.listenOn(id, at); err != nil {
		id.destroy()
		return nil, err
	}
	return id, nil
}
