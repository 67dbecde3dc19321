package kernelcm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// The acceptor's side, up to Accept. A listener has an id for each address. A
// wildcard listener has one for every address of the host that a device of the
// fabric has; rdma_cm has wildcards of its own, but those listen on all devices of
// the host. Ours has to leave out those that the fabric does not use: iWARP is to be
// at another port than the rest, since TCP has this one there, and that would make
// the whole wildcard fail.
//
// A listener has no goroutine while nobody dials. Requests are handled on a goroutine that ends
// with them. A timer looks, for all listeners of the process together, whether addresses or devices
// have come or gone. Handshakes need no goroutine: the kernel has done its part when it reports a
// request, and the rest is Accept's.

// kernelBacklog is how many requests the kernel keeps for us to read. Accept's
// queue is our own.
const kernelBacklog = 256

// maxPending is how many requests that have been read may wait to be looked at.
const maxPending = 1024

// rescan is how often the listeners look whether addresses or devices have
// come.
const rescan = time.Second

// settle is for how many looks after a change a listener tries again: a device that
// has come has no addresses at first.
const settle = 10

// Listen makes ids that listen on addr.
func (f *fabric) Listen(addr netip.AddrPort, cfg rcm.ListenConfig) (rcm.Listener, error) {
	l, err := f.listen(addr, cfg, portSpaceTCP)
	if err != nil {
		return nil, fmt.Errorf("rcm: listen on %v: %w", addr, err)
	}
	return l, nil
}

func (f *fabric) listen(addr netip.AddrPort, cfg rcm.ListenConfig, space portSpace) (*listener, error) {
	addr, cfg, err := handshake.CompleteListen(addr, cfg)
	switch {
	case err != nil:
		return nil, err
	case addr.Addr().IsLoopback():
		return nil, fmt.Errorf("%w: loopback address", rcm.ErrNoRoute)
	case cfg.Device != "" && f.cfg.Device != "" && cfg.Device != f.cfg.Device:
		return nil, fmt.Errorf("%w: listener on %s of a fabric on %s", verbs.ErrInvalid, cfg.Device, f.cfg.Device)
	}
	fabric := &fabric{f.cfg}
	fabric.cfg.Device = cmp.Or(cfg.Device, f.cfg.Device)
	if err := fabric.anyDevice(); err != nil {
		return nil, err
	}
	l := &listener{
		fabric:  fabric,
		space:   space,
		addr:    addr,
		v6Only:  cfg.V6Only,
		timeout: cfg.HandshakeTimeout,
		backlog: handshake.NewBacklog[*request](addr, cfg),
		ids:     make(map[netip.Addr]*cmID),
	}
	if err := l.open(); err != nil {
		l.shutDown() // peers may have come to the addresses that it had
		return nil, err
	}
	rescans.add(l)
	return l, nil
}

type listener struct {
	fabric  *fabric
	space   portSpace
	addr    netip.AddrPort
	v6Only  bool
	timeout time.Duration
	backlog *handshake.Backlog[*request] // ended by Close, and when the listener fails

	// opening is held while ids are opened and closed. It guards ids, which are
	// those that listen, seen, what the host was like when they were opened, and
	// again, for how many looks more to try what is missing.
	opening sync.Mutex
	ids     map[netip.Addr]*cmID
	seen    string
	again   int

	mu      sync.Mutex
	pending []cmEvent      // requests that nobody has looked at, at most maxPending; guarded by mu
	lost    []*cmID        // ids whose device is going; guarded by mu
	busy    bool           // a goroutine works; guarded by mu
	shut    bool           // no goroutine begins any more; guarded by mu
	working sync.WaitGroup // the goroutine
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Stats() rcm.ListenStats { return l.backlog.Stats() }

func (l *listener) Accept(ctx context.Context) (rcm.Request, error) {
	r, err := l.backlog.Take(ctx)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (l *listener) Close() error {
	l.backlog.End(net.ErrClosed)
	l.shutDown()
	return nil
}

// shutDown gives the addresses back, and refuses who has come to them.
func (l *listener) shutDown() {
	rescans.remove(l)
	l.closeIDs()
	l.mu.Lock()
	l.shut = true
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	l.working.Wait() // ends: the goroutine only gives commands that the kernel answers at once
	for _, ev := range pending {
		refuseID(ev.conn, rcm.ReasonInvalidService)
	}
	l.backlog.Drain(func(r *request) { refuseID(r.id, rcm.ReasonInvalidService) })
}

// event is called by the reader of events, with one of an id that listens.
func (l *listener) event(id *cmID, ev cmEvent) {
	switch ev.kind {
	case eventConnectRequest:
		if reason := l.keep(ev); reason != 0 {
			// Here and now, so that no flood of requests is read faster than
			// it is refused. The kernel waits for nobody to do it.
			refuseID(ev.conn, reason)
		}
	case eventLost:
		// Another descriptor would fare no better. The kernel has closed the ids
		// of this one.
		l.backlog.End(ev.lost)
	case eventDeviceRemoval:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lost = append(l.lost, id)
		l.work()
	}
}

// keep keeps a request to be looked at, or says why not.
func (l *listener) keep(ev cmEvent) (refusal uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.shut:
		return rcm.ReasonInvalidService
	case len(l.pending) == maxPending:
		l.backlog.Overflow()
		return rcm.ReasonNoResources
	}
	l.pending = append(l.pending, ev)
	l.work()
	return 0
}

// work starts a goroutine that looks at what has come, unless one does. mu is held.
func (l *listener) work() {
	if !l.busy && !l.shut {
		l.busy = true
		l.working.Go(l.serve)
	}
}

// serve queues the requests that have come, and closes ids that are lost, until there
// are none.
func (l *listener) serve() {
	for {
		l.mu.Lock()
		pending, lost := l.pending, l.lost
		l.pending, l.lost = nil, nil
		l.busy = len(pending)+len(lost) > 0
		busy := l.busy
		l.mu.Unlock()
		if !busy {
			return
		}
		for _, id := range lost {
			l.closeID(id)
		}
		for _, ev := range pending {
			l.request(ev)
		}
	}
}

// request queues one request, or refuses it.
func (l *listener) request(ev cmEvent) {
	r, err := newRequest(ev, l)
	if err != nil {
		// The peer has gone already, its device has, or this process is short
		// of descriptors.
		l.backlog.Overflow()
		refuseID(ev.conn, rcm.ReasonNoResources)
		return
	}
	if !l.backlog.Add(r) {
		refuseID(ev.conn, rcm.ReasonNoResources)
	}
}

// closeID closes an id whose device is being removed, which waits for that. Its
// address may have an id on another device already.
func (l *listener) closeID(id *cmID) {
	l.opening.Lock()
	defer l.opening.Unlock()
	maps.DeleteFunc(l.ids, func(_ netip.Addr, other *cmID) bool { return other == id })
	id.destroy()
	l.again = settle
}

func (l *listener) closeIDs() {
	l.opening.Lock()
	defer l.opening.Unlock()
	for at, id := range l.ids {
		delete(l.ids, at)
		id.destroy()
	}
}

// open opens the ids for addresses that the host has.
func (l *listener) open() error {
	host, addrs, err := hostState()
	if err != nil {
		return err
	}
	l.opening.Lock()
	defer l.opening.Unlock()
	return l.openMissing(host, addrs)
}

// openMissing opens what is missing. The error is about the first address that
// could have been had but for somebody else; it wraps ErrNoRoute if no device has
// any of the addresses, and ErrUnsupported if those that have lack what it takes.
// opening is held.
func (l *listener) openMissing(host string, addrs []netip.Addr) error {
	var firstErr, lacking error
	for _, at := range addrs {
		if l.ids[at] != nil || !handshake.Serves(l.addr.Addr(), l.v6Only, at) {
			continue
		}
		id, err := l.openID(at)
		switch {
		case err == nil:
			l.ids[at] = id
		case errors.Is(err, verbs.ErrUnsupported):
			lacking = err
		case !errors.Is(err, rcm.ErrNoRoute) && firstErr == nil:
			firstErr = err
		}
	}
	l.seen = host
	if firstErr != nil {
		l.again = settle // what is taken now may be free later
		return firstErr
	}
	if len(l.ids) == 0 && lacking != nil {
		return lacking
	}
	if len(l.ids) == 0 {
		return fmt.Errorf("%w: none that may be used has this address", rcm.ErrNoRoute)
	}
	return nil
}

// rescan opens ids where addresses or devices have come or an id was lost, and closes
// those whose address has gone.
func (l *listener) rescan(host string, addrs []netip.Addr) {
	l.opening.Lock()
	defer l.opening.Unlock()
	switch {
	case l.backlog.HasEnded():
		return
	case host != l.seen:
		l.again = settle
	case l.again == 0:
		return
	}
	l.again--
	for at, id := range l.ids {
		if !slices.Contains(addrs, at) {
			delete(l.ids, at)
			id.destroy()
		}
	}
	_ = l.openMissing(host, addrs) // what it could not open it tries at the next look
}

// openID makes an id listen on one address.
func (l *listener) openID(at netip.Addr) (*cmID, error) {
	id, err := newCMID(l.space)
	if err != nil {
		return nil, err
	}
	if err := l.listenOn(id, at); err != nil {
		id.destroy()
		return nil, err
	}
	return id, nil
}

// rescans are the listeners of the process, for which a timer looks at the host
// together.
var rescans rescanner

type rescanner struct {
	mu        sync.Mutex
	listeners map[*listener]struct{} // guarded by mu
	timer     *time.Timer            // guarded by mu; it runs while there are listeners
}

func (r *rescanner) add(l *listener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil {
		r.listeners = make(map[*listener]struct{})
		r.timer = time.AfterFunc(rescan, r.look)
	} else if len(r.listeners) == 0 {
		r.timer.Reset(rescan)
	}
	r.listeners[l] = struct{}{}
}

func (r *rescanner) remove(l *listener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.listeners, l)
	if len(r.listeners) == 0 && r.timer != nil {
		r.timer.Stop()
	}
}

// look runs on a goroutine of the timer's.
func (r *rescanner) look() {
	r.mu.Lock()
	listeners := slices.Collect(maps.Keys(r.listeners))
	r.mu.Unlock()
	// Without an answer (the process is short of descriptors, say) all ids stay.
	if host, addrs, err := hostState(); err == nil {
		for _, l := range listeners {
			l.rescan(host, addrs)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.listeners) > 0 {
		r.timer.Reset(rescan)
	}
}
