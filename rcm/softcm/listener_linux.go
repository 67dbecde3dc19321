package softcm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// The acceptor's side, up to Accept: connections are taken off the socket as they
// come (samehost.Listener.Serve), each handshake runs on a goroutine of its own until
// the request is complete, and complete requests wait in a channel. Without peers
// there is no goroutine but the one that all listeners of the process have together.

// maxHandshakes is how many peers may owe their request at a time. A dialer that only
// resolved is among them.
const maxHandshakes = 1024

// Listen makes the bootstrap socket of addr.
func (f *fabric) Listen(addr netip.AddrPort, cfg rcm.ListenConfig) (rcm.Listener, error) {
	l, err := f.listen(addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("rcm: listen on %v: %w", addr, err)
	}
	return l, nil
}

func (f *fabric) listen(addr netip.AddrPort, cfg rcm.ListenConfig) (*listener, error) {
	addr, cfg, err := handshake.CompleteListen(addr, cfg)
	if err != nil {
		return nil, err
	}
	if addr.Addr().Zone() != "" {
		return nil, fmt.Errorf("%w: address has a zone", rcm.ErrNoRoute)
	}
	l := f.newListener(addr, cfg)
	err = l.listenWith(func(sc samehost.ListenConfig, _ int) (*samehost.Listener, error) { return samehost.Listen(sc) })
	if err != nil {
		return nil, err
	}
	l.meet()
	return l, nil
}

// newListener makes a listener that has no sockets yet.
func (f *fabric) newListener(addr netip.AddrPort, cfg rcm.ListenConfig) *listener {
	return &listener{
		f:       f,
		addr:    addr,
		v6Only:  cfg.V6Only,
		device:  cmp.Or(cfg.Device, f.device),
		timeout: cfg.HandshakeTimeout,
		allow:   cfg.PeerPolicy,
		backlog: handshake.NewBacklog[*request](addr, cfg),
		shaking: make(map[*socket]struct{}),
		awaited: make(chan struct{}, 1),
	}
}

// listenWith gives the listener what it listens with: a socket for each of its names, of which
// listen makes the i-th. If there is an error it has none.
func (l *listener) listenWith(listen func(cfg samehost.ListenConfig, i int) (*samehost.Listener, error)) error {
	f := l.f
	socketConfig := samehost.ListenConfig{
		Type: unix.SOCK_SEQPACKET, Backlog: unix.SOMAXCONN,
		Admit:  policy(f.allow),
		Denied: func(samehost.Peer) { l.denied.Add(1) },
		Denial: handshake.Refusal(rcm.ReasonPeerDenied),
	}
	for i, name := range f.listenNames(l.addr, l.v6Only) {
		named := socketConfig
		if f.rules.byKernel() { // shake looks at them
			named.Admit = everybody
		}
		named.Name = name
		if f.given != nil {
			named.Bound = f.claim
		}
		ln, err := listen(named, i)
		if err != nil {
			for _, ln := range l.lns {
				ln.Close()
			}
			return err
		}
		l.lns = append(l.lns, ln)
	}
	for _, ln := range l.lns {
		if err := ln.Serve(func(c *samehost.Conn) { l.shake(&socket{Conn: c}) }); err != nil {
			l.Close()
			return err
		}
	}
	if dir := f.directory(); dir != nil && (l.addr.Addr().IsUnspecified() || mayMeet(l.addr.Addr())) {
		socketConfig.Admit, socketConfig.Others, socketConfig.AnyPlace = everybody, !f.rules.none(), f.rules.anyUser()
		l.meeting = &meeting{l: l, dir: dir, cfg: socketConfig}
	}
	return nil
}

// meet has the listener stand in its directory from now on, if it has one.
func (l *listener) meet() {
	if l.meeting != nil {
		meetings.add(l.meeting)
	}
}

type listener struct {
	f       *fabric
	addr    netip.AddrPort
	v6Only  bool
	device  string
	timeout time.Duration
	allow   func(rcm.Peer) bool  // of those whom lns let in; nil: all
	lns     []*samehost.Listener // one for each name
	backlog *handshake.Backlog[*request]
	running sync.WaitGroup // the handshakes
	adopted time.Time      // when the place was handed over to us; zero if it was not
	meeting *meeting       // nil without a directory

	mu         sync.Mutex
	shaking    map[*socket]struct{} // guarded by mu; nil once closed
	asking     int                  // those of them who may send their request, and do not wait for our place; guarded by mu
	proving    []*socket            // those of them who have yet to show the key, the oldest first; guarded by mu
	successors []*socket            // of those who wait for our place, the first first; guarded by mu
	awaited    chan struct{}        // has room for one: somebody has come who waits for our place
	handing    bool                 // HandOver was called; guarded by mu
	taken      chan struct{}        // closed when one of the successors has answered; nil before Offer; guarded by mu

	malformed, timedOut, denied atomic.Uint64
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Stats() rcm.ListenStats {
	st := l.backlog.Stats()
	st.Malformed, st.TimedOut, st.Denied = l.malformed.Load(), l.timedOut.Load(), l.denied.Load()
	return st
}

func (l *listener) Accept(ctx context.Context) (rcm.Request, error) {
	r, err := l.next(ctx)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// next returns the next request of a peer that still waits.
func (l *listener) next(ctx context.Context) (*request, error) {
	for {
		r, err := l.backlog.Take(ctx)
		if err != nil {
			return nil, err
		}
		if r.sock.waiting() {
			return r, nil
		}
		r.sock.Close() // the dialer has given up
	}
}

func (l *listener) Close() error {
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
	l.backlog.End(net.ErrClosed)
	var err error
	if l.meeting != nil { // before another process gets the other names, and wants these
		l.meeting.close()
	}
	for _, ln := range l.lns {
		err = errors.Join(err, ln.Close())
	}
	l.running.Wait() // ends: the sockets that the goroutines read are closed
	l.backlog.Drain(func(r *request) { r.refuse(rcm.ReasonInvalidService) })
	return err
}

// maxProving is how many peers may owe the proof that they have the key: of more the oldest
// is ended. They take no places of others.
const maxProving = 64

// shake starts the handshake with a new peer.
func (l *listener) shake(sock *socket) {
	if sock.met || l.f.rules.byKernel() {
		mayProve := sock.met && len(l.f.rules.Key) > 0
		if sock.known = l.f.knows(sock.Conn); !sock.known && !mayProve {
			l.deny(sock)
			return
		}
	}
	l.mu.Lock()
	full := !l.provesFirst(sock) && l.full()
	if l.shaking != nil && !full {
		l.shaking[sock] = struct{}{}
		if l.provesFirst(sock) {
			if len(l.proving) == maxProving {
				l.proving[0].Close() // which ends its handshake
				l.proving = slices.Delete(l.proving, 0, 1)
			}
			l.proving = append(l.proving, sock)
		} else {
			l.mayAsk(sock, true)
		}
		l.running.Add(1)
		l.mu.Unlock()
		go l.handshake(sock)
		return
	}
	l.mu.Unlock()
	if full {
		l.backlog.Overflow()
		refuse(sock, rcm.ReasonNoResources)
		return
	}
	sock.Close() // the listener is closed
}

// full reports whether no peer is taken that may send its request. mu is held.
func (l *listener) full() bool { return l.asking >= maxHandshakes }

// mayAsk counts a peer among those who may send their request, or no longer. mu is held.
func (l *listener) mayAsk(sock *socket, does bool) {
	switch {
	case does && !sock.asks:
		l.asking++
	case !does && sock.asks:
		l.asking--
	}
	sock.asks = does
}

func (l *listener) provesFirst(sock *socket) bool { return sock.met && !sock.known }

// prove answers a peer's KEY, and reports in the error if it may go on.
func (l *listener) prove(sock *socket, first handshake.Message) error {
	if err := sock.answerKey(l.f.rules.Key, first); err != nil {
		return err
	}
	if !l.provesFirst(sock) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full() {
		return fmt.Errorf("%w: too many handshakes", rcm.ErrBusy)
	}
	l.proved(sock)
	l.mayAsk(sock, true)
	return nil
}

// proved takes a peer from those who have yet to show the key. mu is held.
func (l *listener) proved(sock *socket) {
	if i := slices.Index(l.proving, sock); i >= 0 {
		l.proving = slices.Delete(l.proving, i, i+1)
	}
}

func (l *listener) deny(sock *socket) {
	l.denied.Add(1)
	refuse(sock, rcm.ReasonPeerDenied)
}

// handshake receives one peer's request and queues it.
func (l *listener) handshake(sock *socket) {
	defer l.running.Done()
	if !sock.met && !l.admits(sock) {
		l.release(sock)
		return
	}
	sock.SetReadDeadline(time.Now().Add(l.timeout))
	m, err := l.receiveFirst(sock)
	if !sock.met && l.f.socket == nil && !l.f.datagrams && err == nil && m.Kind == handshake.KindAwait && sock.Peer().SameUser() {
		l.awaits(sock, m)
		l.release(sock)
		return
	}
	if sock.met && err == nil && m.Kind == handshake.KindKey {
		if err = l.prove(sock, m); err == nil {
			m, err = sock.receive()
		}
	}
	if open := l.release(sock); !open {
		sock.Close()
		return
	}
	sock.SetReadDeadline(time.Time{})
	if l.provesFirst(sock) && !sock.proven && !errors.Is(err, errHungUp) {
		l.deny(sock)
		return
	}
	if err = expected(m, err, l.f.asks()); err == nil {
		err = l.check(sock, m)
	}
	switch {
	case err == nil:
		if sock.met && !l.admits(sock) {
			return
		}
		if l.f.socket != nil && !sock.shown {
			l.deny(sock)
			return
		}
		r := &request{l: l, sock: sock, req: m}
		if !l.backlog.Add(r) {
			r.refuse(rcm.ReasonNoResources)
		}
	case errors.Is(err, handshake.ErrVersion):
		l.malformed.Add(1)
		refuse(sock, rcm.ReasonInvalidVersion)
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.timedOut.Add(1)
		refuse(sock, rcm.ReasonTimeout)
	case errors.Is(err, rcm.ErrBusy):
		l.backlog.Overflow()
		refuse(sock, rcm.ReasonNoResources)
	case errors.Is(err, errHungUp):
		sock.Close() // resolved, and then went another way, or is not heard any more, for this listener hands over
	default:
		l.malformed.Add(1)
		sock.Close()
	}
}

// asks is the message with which a dialer of the fabric asks.
func (f *fabric) asks() handshake.MessageKind {
	if f.datagrams {
		return handshake.KindLookup
	}
	return handshake.KindRequest
}

// admits reports whether the listener's own policy lets a peer in, and otherwise tells
// it so.
func (l *listener) admits(sock *socket) bool {
	if l.allow == nil || l.allow(sock.peer()) {
		return true
	}
	l.deny(sock)
	return false
}

// check checks the addresses of a REQ.
func (l *listener) check(sock *socket, m handshake.Message) error {
	// By a directory come peers from a network, not those of this namespace.
	if sock.met && (!mayMeet(m.Src.Addr()) || !mayMeet(m.Dst.Addr())) || !l.serves(m.Dst) {
		return fmt.Errorf("%w: REQ from %v for %v", rcm.ErrMalformed, m.Src, m.Dst)
	}
	return nil
}

// release takes sock, whose handshake is over, from those that Close closes,
// and reports whether the listener is still open.
func (l *listener) release(sock *socket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.shaking, sock)
	l.proved(sock)
	l.mayAsk(sock, false)
	return l.shaking != nil
}

// serves reports whether a dial to dst, an address of this host, can have
// come to this listener.
func (l *listener) serves(dst netip.AddrPort) bool {
	return dst.Port() == l.addr.Port() && handshake.Serves(l.addr.Addr(), l.v6Only, dst.Addr())
}
