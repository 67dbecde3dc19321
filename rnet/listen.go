package rnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
)

// Listen is net.Listen: for "tcp", "tcp4" and "tcp6" the listener serves
// plain TCP peers, ramjet peers of this host, and those that come over the
// host's RDMA devices, on the same address. Other networks go to package net.
func Listen(network, address string) (net.Listener, error) {
	var lc ListenConfig
	return lc.Listen(context.Background(), network, address)
}

// ListenConfig is net.ListenConfig with a choice of transport. The zero value
// is good.
//
// RDMA devices, and addresses on them, have to be there when Listen is called:
// with Auto a listener that finds none serves no RDMA peers later either. What
// it has found may go and come back.
type ListenConfig struct {
	Control         func(network, address string, c syscall.RawConn) error
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// Transport and Profile win over the environment. With Soft or RDMA the
	// address is still taken as a TCP port, and TCP peers are reset.
	Transport Transport
	Profile   Profile
	// Device is the only device to use, or the only port of it, see Dialer.
	Device string
	// Peers narrows down which processes of the same user may connect by the
	// software HCA; nil means all of them. Others are served over TCP. It is
	// asked once for each session, on goroutines of the listener, by several
	// at once, and delays only the peer that it is asked about.
	Peers func(PeerProcess) bool
	// Limits are the sizes of the sessions of this listener.
	Limits Limits
	// Logger gets each decision at debug level, see Dialer.
	Logger *slog.Logger
}

// PeerProcess is a process of this host that wants to connect.
type PeerProcess struct {
	PID      int
	UID, GID uint32
}

// Listen announces on the address. ctx bounds the look-up of the address, as in
// package net. With Auto it fails only if package net would have, or a setting
// cannot be read; with Soft or RDMA also if there is no such device, or it cannot
// listen.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	tcpConfig := net.ListenConfig{Control: lc.Control, KeepAlive: lc.KeepAlive, KeepAliveConfig: lc.KeepAliveConfig}
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return tcpConfig.Listen(ctx, network, address)
	}
	set, err := lc.settings()
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	if set.transport == fallback.TCP {
		return tcpConfig.Listen(ctx, network, address)
	}
	if !anyPort(address) {
		return lc.listenAt(ctx, tcpConfig, network, address, set)
	}
	for try := 1; ; try++ {
		tcp, err := tcpConfig.Listen(ctx, network, address)
		if err != nil {
			return nil, err
		}
		l, err := lc.listenBeside(tcp, network, set, try < portTries)
		if !errors.Is(err, errPortTaken) {
			return l, err
		}
	}
}

// listenAt listens where the port is named: see listen_first.go.
func (lc *ListenConfig) listenAt(ctx context.Context, tcpConfig net.ListenConfig, network, address string, set settings) (net.Listener, error) {
	var first *Listener
	tcpConfig.Control = func(name, resolved string, c syscall.RawConn) error {
		if lc.Control != nil {
			if err := lc.Control(name, resolved, c); err != nil {
				return err
			}
		}
		if first == nil { // net comes twice if it tries MPTCP in vain
			first = lc.listenFirst(network, resolved, c, set)
		}
		return nil
	}
	tcp, err := tcpConfig.Listen(ctx, network, address)
	switch {
	case err != nil && first != nil:
		first.Close()
		return nil, err
	case err != nil:
		return nil, err
	case first != nil:
		first.acceptFrom(tcp)
		return first, nil
	}
	return lc.listenBeside(tcp, network, set, false)
}

func (lc *ListenConfig) settings() (settings, error) {
	return resolveSettings(lc.Transport, lc.Profile, lc.Device, lc.Limits, lc.Logger)
}

// portTries is how many ports are tried where any will do: the connection
// managers of kernel devices have ports of their own, or share those of TCP,
// and a port that was free for our TCP listener may be taken there.
const portTries = 8

var errPortTaken = errors.New("the port is taken on another transport")

func anyPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && (port == "" || port == "0")
}

// listenBeside starts the listeners that stand beside a TCP listener. If one
// finds the port taken and another port will do, the error wraps errPortTaken.
func (lc *ListenConfig) listenBeside(tcp net.Listener, network string, set settings, otherPort bool) (net.Listener, error) {
	l := newListener(tcp.Addr(), network, set, nil)
	if err := l.listenFabrics(lc.Peers, otherPort); err != nil {
		l.Close()
		tcp.Close()
		return nil, &net.OpError{Op: "listen", Net: network, Addr: tcp.Addr(), Err: err}
	}
	l.acceptFrom(tcp)
	return l, nil
}

// Listener is what Listen returns for the TCP networks, unless the transport is
// TCP: then it is a *net.TCPListener. Its methods may be called from any
// goroutine. Errors are *net.OpError values that wrap net.ErrClosed after Close.
type Listener struct {
	number  uint64           // among the listeners of the process
	tcp     *net.TCPListener // nil if somebody else listens there: see loops
	addr    net.Addr
	network string
	set     settings
	fabrics []rcm.Listener

	avail   chan struct{}   // one token: look at queue
	fromTCP chan tcpAccept  // what the TCP listener accepted
	done    chan struct{}   // closed by Close
	work    sync.WaitGroup  // the accepting goroutines
	accepts atomic.Uint32   // calls of Accept
	open    context.Context // ends with Close, and with it the set-up of sessions
	stop    context.CancelFunc
	loops   *loopChoice // for the sessions; nil: the streams wait for Accept

	mu       sync.Mutex
	queue    []*Conn // streams that wait for Accept; guarded by mu
	closed   bool
	expired  bool
	timer    *time.Timer
	sessions map[*session]struct{} // guarded by mu
	pushed   uint64                // streams that came; guarded by mu

	overTCP, failed atomic.Uint64 // connections over TCP, sessions that did not come about
}

type tcpAccept struct {
	conn net.Conn
	err  error
}

// loopChoice gives sessions to event loops.
type loopChoice struct {
	// ready is closed when there are loops, nil if there are. Until then peers
	// wait in the backlogs of the fabrics' listeners, and no longer than they
	// want to.
	ready <-chan struct{}
	of    func(peer net.Addr) *poller
}

// newListener makes a listener that listens nowhere yet. It must be closed.
func newListener(addr net.Addr, network string, set settings, loops *loopChoice) *Listener {
	l := &Listener{
		addr: addr, network: network, set: set, loops: loops,
		avail: make(chan struct{}, 1), fromTCP: make(chan tcpAccept), done: make(chan struct{}),
	}
	l.open, l.stop = context.WithCancel(context.Background())
	liveListeners.add(l)
	return l
}

// acceptFrom makes the listener serve TCP peers.
func (l *Listener) acceptFrom(tcp net.Listener) {
	l.tcp = tcp.(*net.TCPListener)
	l.work.Go(l.acceptTCP)
}

// listenFabrics starts a listener on each fabric that the policy allows. With
// Auto a fabric that cannot listen is left out.
func (l *Listener) listenFabrics(peers func(PeerProcess) bool, otherPort bool) error {
	addr := l.addr.(*net.TCPAddr).AddrPort()
	addr = netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port())
	cfg := rcm.ListenConfig{V6Only: l.network == "tcp6"}
	if peers != nil {
		cfg.PeerPolicy = func(p rcm.Peer) bool { return peers(PeerProcess{PID: p.PID, UID: p.UID, GID: p.GID}) }
	}
	var lastErr error
	for _, f := range l.set.fabrics() {
		at := f.at(addr)
		if at.Port() == 0 {
			continue
		}
		fl, err := f.Listen(at, cfg)
		l.set.log.Debug("rnet: listen", "address", at, "transport", f.transport, "err", err)
		if otherPort && errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w: %w", errPortTaken, err)
		}
		if err != nil {
			lastErr = worse(lastErr, because(f.transport, err))
			continue
		}
		l.fabrics = append(l.fabrics, fl)
		l.work.Go(func() { l.acceptFabric(f.transport, fl) })
	}
	if len(l.fabrics) == 0 && l.set.transport != fallback.Auto {
		if lastErr == nil {
			lastErr = fallback.Because(fallback.NoDevice, rcm.ErrNoRoute)
		}
		return &transportError{l.set.transport, lastErr}
	}
	return nil
}

// acceptTCP hands on what the TCP listener accepts, one at a time: what waits
// waits in the kernel's backlog.
func (l *Listener) acceptTCP() {
	for {
		conn, err := l.tcp.Accept() // ended by a peer, or Close
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && l.set.transport != fallback.Auto {
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
			continue
		}
		if err == nil {
			l.overTCP.Add(1)
		}
		select {
		case l.fromTCP <- tcpAccept{conn, err}: // ended by Accept
		case <-l.done:
			if conn != nil {
				conn.Close()
			}
			return
		}
	}
}

// acceptFabric sets up the sessions that peers ask for. If the fabric's
// listener is lost, the others go on.
func (l *Listener) acceptFabric(t fallback.Transport, fl rcm.Listener) {
	if l.loops != nil && l.loops.ready != nil {
		select { // ended by the event loops, or Close
		case <-l.loops.ready:
		case <-l.done:
			return
		}
	}
	for {
		req, err := fl.Accept(context.Background()) // ended by a peer, or Close
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				l.set.log.Error("rnet: listener serves this transport no more", "transport", t, "address", fl.Addr(), "err", err)
			}
			return
		}
		l.work.Go(func() { l.serve(t, req) })
	}
}

// serve sets up a session. It has a time limit, and what it sets up ends with
// the peer.
func (l *Listener) serve(t fallback.Transport, req rcm.Request) {
	s, err := l.newSession(t, req)
	if err != nil {
		l.failed.Add(1)
		l.set.log.Debug("rnet: session refused", "peer", req.RemoteAddr(), "pid", req.Peer().PID, "err", err)
		return
	}
	l.set.log.Debug("rnet: session", "peer", s.remoteAddr, "pid", req.Peer().PID, "transport", t, "device", s.device)
}

func (l *Listener) newSession(t fallback.Transport, req rcm.Request) (*session, error) {
	if !setUps.TryEnter() {
		req.Reject(nil)
		return nil, errors.New("too many sessions are being set up")
	}
	defer setUps.Leave()
	defer region("rnet.session").End()
	s, err := newSession(req.Device(), l.set.session, l.set.log)
	if err != nil {
		req.Reject(nil)
		return nil, err
	}
	s.transport = t
	s.goesOver(req.Port())
	s.accept, s.onEnd = l.push, l.forget
	if l.loops != nil {
		s.setLoop(l.loops.of(net.TCPAddrFromAddrPort(req.RemoteAddr())))
		s.accept = func(*Conn) bool { return false } // the loop has ended
		s.onOpen = l.countStream
	}
	if err := s.learn(req.PrivateData()); err != nil {
		req.Reject(nil)
		s.abandon()
		return nil, err
	}
	if !l.adopt(s) {
		req.Reject(nil)
		s.abandon()
		return nil, net.ErrClosed
	}
	ctx, cancel := context.WithTimeout(l.open, setUpTime)
	defer cancel()
	conn, err := req.Accept(ctx, s.qp, s.connParam())
	if err != nil {
		l.forget(s)
		s.abandon()
		return nil, err
	}
	port := l.addr.(*net.TCPAddr).AddrPort().Port()
	s.localAddr, s.remoteAddr = netip.AddrPortFrom(conn.LocalAddr().Addr(), port), conn.RemoteAddr()
	if err := s.start(ctx, conn); err != nil {
		return nil, err
	}
	if s.poller != nil {
		s.poller.add(s)
	}
	return s, nil
}

func (l *Listener) adopt(s *session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.sessions == nil {
		l.sessions = make(map[*session]struct{})
	}
	l.sessions[s] = struct{}{}
	return true
}

func (l *Listener) forget(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, s)
}

// maxBacklog bounds the streams that wait for Accept: what a peer opens and
// resets at once leaves its session's table, but not the queue.
const maxBacklog = 1 << 17

// push takes a stream that a peer has opened. The leader of its session calls
// it, so it does not wait.
func (l *Listener) push(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queue) >= maxBacklog {
		return false
	}
	l.queue = append(l.queue, c)
	l.pushed++
	l.signal()
	return true
}

// signal makes one Accept look at the state. mu is held.
func (l *Listener) signal() {
	select {
	case l.avail <- struct{}{}:
	default:
	}
}

// tcpTurn is how many calls of Accept prefer streams before one prefers what
// came over TCP, which would wait for ever behind a queue that is never empty.
const tcpTurn = 16

// Accept waits for the next connection, a [*Conn] or a *net.TCPConn. It ends
// with Close and with the deadline. Any number of goroutines may call it.
func (l *Listener) Accept() (net.Conn, error) {
	if l.accepts.Add(1)%tcpTurn == 0 {
		select {
		case a := <-l.fromTCP:
			return a.conn, a.err
		default:
		}
	}
	for {
		conn, err := l.pop()
		if conn != nil {
			return conn, nil
		}
		if err != nil {
			return nil, l.opError("accept", err)
		}
		select {
		case <-l.avail: // ended by push, a deadline, Close, another Accept
		case a := <-l.fromTCP: // ended by the TCP listener
			return a.conn, a.err
		}
	}
}

// pop returns the oldest stream in the queue, or the reason for which Accept
// must not wait, or neither.
func (l *Listener) pop() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		l.signal() // to the next one who waits
		return nil, net.ErrClosed
	case l.expired:
		l.signal()
		return nil, os.ErrDeadlineExceeded
	case len(l.queue) == 0:
		return nil, nil
	}
	c := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	if len(l.queue) > 0 {
		l.signal()
	}
	return c, nil
}

// SetDeadline makes Accept fail after t with an error that wraps
// os.ErrDeadlineExceeded; zero means never.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.opError("set", net.ErrClosed)
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = nil // it may be firing already, and finds that it is no more
	l.expired = false
	if t.IsZero() {
		return nil
	}
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(t), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timer == timer {
			l.expired = true
			l.signal()
		}
	})
	l.timer = timer
	return nil
}

// Addr returns the address of the listener, a *net.TCPAddr.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops listening. Connections that Accept has returned live on; those
// that wait for it are reset.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return l.opError("close", net.ErrClosed)
	}
	l.closed = true
	queue := l.queue
	l.queue = nil
	sessions := make([]*session, 0, len(l.sessions))
	for s := range l.sessions {
		sessions = append(sessions, s)
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.signal()
	l.mu.Unlock()
	close(l.done)
	var err error
	if l.tcp != nil {
		err = l.tcp.Close()
	}
	l.closeFabrics()
	for _, c := range queue {
		c.SetLinger(0)
		c.Close()
	}
	for _, s := range sessions {
		s.retire()
	}
	l.work.Wait() // ended by the closed listeners
	liveListeners.remove(l)
	return err
}

// closeFabrics closes the listeners of the fabrics, and ends the set-up of
// sessions.
func (l *Listener) closeFabrics() {
	l.stop()
	for _, fl := range l.fabrics {
		fl.Close()
	}
}

func (l *Listener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: l.network, Addr: l.Addr(), Err: err}
}

// retire lets a session end with its last stream; the peer is told to open no
// more.
func (s *session) retire() {
	s.goingAway.Store(true)
	s.sessionControl(false, true)
	if s.streams.shutIfEmpty() {
		s.fail(fmt.Errorf("%w: the listener was closed", errSessionIdle))
	}
}
