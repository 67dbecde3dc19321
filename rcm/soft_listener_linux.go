package rcm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// The acceptor's side, up to Accept: connections are taken off the socket as they
// come (samehost.Listener.Serve), each handshake runs on a goroutine of its own until
// the request is complete, and complete requests wait in a channel. Without peers
// there is no goroutine but the one that all listeners of the process have together.

const (
	defaultBacklog          = 128
	defaultHandshakeTimeout = 5 * time.Second

	// maxHandshakes is how many peers may owe their request at a time. A
	// dialer that only resolved is among them.
	maxHandshakes = 1024
)

// Listen makes the bootstrap socket of addr.
func (f *softFabric) Listen(addr netip.AddrPort, cfg ListenConfig) (Listener, error) {
	l, err := f.listen(addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("rcm: listen on %v: %w", addr, err)
	}
	return l, nil
}

func (f *softFabric) listen(addr netip.AddrPort, cfg ListenConfig) (*softListener, error) {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	switch {
	case !addr.Addr().IsValid() || addr.Port() == 0:
		return nil, fmt.Errorf("%w: needs an address and a port", verbs.ErrInvalid)
	case addr.Addr().Zone() != "":
		return nil, fmt.Errorf("%w: address has a zone", ErrNoRoute)
	case cfg.Backlog < 0 || cfg.HandshakeTimeout < 0:
		return nil, fmt.Errorf("%w: backlog %d, handshake timeout %v", verbs.ErrInvalid, cfg.Backlog, cfg.HandshakeTimeout)
	}
	l := &softListener{
		addr:    addr,
		v6Only:  cfg.V6Only,
		device:  cmp.Or(cfg.Device, f.device),
		timeout: cmp.Or(cfg.HandshakeTimeout, defaultHandshakeTimeout),
		allow:   cfg.PeerPolicy,
		queue:   make(chan *softRequest, cmp.Or(cfg.Backlog, defaultBacklog)),
		closed:  make(chan struct{}),
		shaking: make(map[*socket]struct{}),
		arrived: cfg.Arrived,
	}
	for _, name := range listenNames(addr, cfg.V6Only) {
		ln, err := samehost.Listen(samehost.ListenConfig{
			Type: unix.SOCK_SEQPACKET, Name: name, Backlog: unix.SOMAXCONN,
			Admit:  policy(f.allow),
			Denied: func(samehost.Peer) { l.denied.Add(1) },
			Denial: denial(ReasonPeerDenied),
		})
		if err != nil {
			for _, ln := range l.lns {
				ln.Close()
			}
			return nil, err
		}
		l.lns = append(l.lns, ln)
	}
	for _, ln := range l.lns {
		if err := ln.Serve(func(c *samehost.Conn) { l.shake(&socket{c}) }); err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

type softListener struct {
	addr    netip.AddrPort
	v6Only  bool
	device  string
	timeout time.Duration
	allow   func(Peer) bool      // of those whom lns let in; nil: all
	lns     []*samehost.Listener // one for each name
	queue   chan *softRequest    // complete requests; never blocks its senders
	closed  chan struct{}        // closed by Close
	arrived func()               // ListenConfig.Arrived; may be nil
	running sync.WaitGroup       // the handshakes

	mu      sync.Mutex
	shaking map[*socket]struct{} // guarded by mu; nil once closed

	requests, malformed, timedOut, denied, overflows atomic.Uint64
}

func (l *softListener) Addr() netip.AddrPort { return l.addr }

func (l *softListener) Stats() ListenStats {
	return ListenStats{
		Requests:  l.requests.Load(),
		Malformed: l.malformed.Load(),
		TimedOut:  l.timedOut.Load(),
		Denied:    l.denied.Load(),
		Overflows: l.overflows.Load(),
	}
}

func (l *softListener) Accept(ctx context.Context) (Request, error) {
	for {
		// A closed listener gives no request, however many wait.
		select {
		case <-l.closed:
			return nil, l.wrap(net.ErrClosed)
		default:
		}
		var r *softRequest
		select {
		case r = <-l.queue: // it comes before the end of ctx
		default:
			// Ends with a request, Close or ctx.
			select {
			case r = <-l.queue:
			case <-l.closed:
				return nil, l.wrap(net.ErrClosed)
			case <-ctx.Done():
				return nil, l.wrap(contextError(ctx))
			}
		}
		if r.sock.waiting() {
			return r, nil
		}
		r.sock.Close() // the dialer has given up
	}
}

func (l *softListener) wrap(err error) error { return fmt.Errorf("rcm: accept on %v: %w", l.addr, err) }

func (l *softListener) Close() error {
	l.mu.Lock()
	if l.shaking == nil {
		l.mu.Unlock()
		return nil
	}
	for s := range l.shaking {
		s.Close()
	}
	l.shaking = nil
	l.mu.Unlock()
	close(l.closed)
	if l.arrived != nil {
		l.arrived()
	}
	var err error
	for _, ln := range l.lns {
		err = errors.Join(err, ln.Close())
	}
	l.running.Wait() // ends: the sockets that the goroutines read are closed
	for {
		select {
		case r := <-l.queue:
			r.refuse(ReasonInvalidService)
		default:
			return err
		}
	}
}

// shake starts the handshake with a new peer.
func (l *softListener) shake(sock *socket) {
	l.mu.Lock()
	full := len(l.shaking) >= maxHandshakes
	if l.shaking != nil && !full {
		l.shaking[sock] = struct{}{}
		l.running.Add(1)
		l.mu.Unlock()
		go l.handshake(sock)
		return
	}
	l.mu.Unlock()
	if full {
		l.overflows.Add(1)
		refuse(sock, ReasonNoResources)
		return
	}
	sock.Close() // the listener is closed
}

// handshake receives one peer's request and queues it.
func (l *softListener) handshake(sock *socket) {
	defer l.running.Done()
	if l.allow != nil && !l.allow(sock.peer()) {
		l.denied.Add(1)
		l.release(sock)
		refuse(sock, ReasonPeerDenied)
		return
	}
	sock.SetReadDeadline(time.Now().Add(l.timeout))
	m, err := sock.expect(kindRequest)
	if open := l.release(sock); !open {
		sock.Close()
		return
	}
	if err == nil && !l.serves(m.dst) {
		err = fmt.Errorf("%w: REQ for %v", ErrMalformed, m.dst)
	}
	switch {
	case err == nil:
		sock.SetReadDeadline(time.Time{})
		l.enqueue(&softRequest{device: l.device, timeout: l.timeout, sock: sock, req: m})
	case errors.Is(err, errVersion):
		l.malformed.Add(1)
		refuse(sock, ReasonInvalidVersion)
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.timedOut.Add(1)
		refuse(sock, ReasonTimeout)
	case errors.Is(err, errHungUp):
		sock.Close() // resolved, and then went another way
	default:
		l.malformed.Add(1)
		sock.Close()
	}
}

// release takes sock, whose handshake is over, from those that Close closes,
// and reports whether the listener is still open.
func (l *softListener) release(sock *socket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.shaking, sock)
	return l.shaking != nil
}

// serves reports whether a dial to dst, an address of this host, can have
// come to this listener.
func (l *softListener) serves(dst netip.AddrPort) bool {
	here := l.addr.Addr()
	switch {
	case dst.Port() != l.addr.Port():
		return false
	case here == netip.IPv6Unspecified():
		return dst.Addr().Is6() || !l.v6Only
	case here == netip.IPv4Unspecified():
		return dst.Addr().Is4()
	}
	return dst.Addr() == here
}

func (l *softListener) enqueue(r *softRequest) {
	select {
	case l.queue <- r:
		l.requests.Add(1)
		if l.arrived != nil {
			l.arrived()
		}
	default:
		l.overflows.Add(1)
		r.refuse(ReasonNoResources)
	}
}
