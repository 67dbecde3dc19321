package rnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// loopChoice gives sessions to event loops.
type loopChoice struct {
	// ready is closed when there are loops, nil if there are. Until then peers
	// wait in the backlogs of the fabrics' listeners, and no longer than they
	// want to.
	ready <-chan struct{}
	of    func(peer net.Addr) *mux.Poller
}

// noWait is a context that has ended.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// acceptFabric sets up the sessions that peers have asked for. It returns an error when
// the fabric's listener is closed or lost.
func (l *Listener) acceptFabric(t fallback.Transport, fl rcm.Listener) error {
	if l.loops != nil && l.loops.ready != nil {
		select { // ended by the event loops, or Close
		case <-l.loops.ready:
		case <-l.open.Done(): // after the hand-over: what listens must be there for it
			return net.ErrClosed
		}
	}
	for {
		req, err := fl.Accept(noWait)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				l.set.Log.Error("rnet: listener on this transport was lost, and is opened again", "transport", t, "address", fl.Addr(), "err", err)
			}
			return err
		}
		if accepting.enter(l.open) != nil { // ended by other set-ups, the clock, or Close
			withdraw(req)
			return net.ErrClosed
		}
		l.work.Go(func() { l.serve(t, req) })
	}
}

// serve sets up a session that may begin. It has a time limit, and what it sets up ends
// with the peer.
func (l *Listener) serve(t fallback.Transport, req rcm.Request) {
	ctx, a := accepting.begin(l.open)
	defer a.leave()
	s, err := l.newSession(ctx, a, t, req)
	if err != nil {
		l.failed.Add(1)
		if cause := context.Cause(ctx); errors.Is(cause, errGaveWay) {
			err = cause
		}
		l.set.Log.Debug("rnet: session refused", "peer", req.RemoteAddr(), "pid", req.Peer().PID, "err", err)
		return
	}
	l.set.Log.Debug("rnet: session", "peer", s.mux.RemoteAddr(), "pid", req.Peer().PID, "transport", t, "device", s.device)
}

func (l *Listener) newSession(ctx context.Context, a *acceptance, t fallback.Transport, req rcm.Request) (*session, error) {
	defer region("rnet.session").End()
	cfg := mux.Config{}
	if l.loops != nil {
		cfg.Poller = l.loops.of(net.TCPAddrFromAddrPort(req.RemoteAddr()))
	}
	s, err := newSession(req.Device(), l.set.Session, cfg, l.set.Log)
	if err != nil {
		req.Reject(nil)
		return nil, err
	}
	s.transport, s.listener, s.onEnd = t, l, l.forget
	s.unix = l.unixAddrs()
	s.goesOver(req.Port())
	if err := s.learn(req.PrivateData()); err != nil {
		req.Reject(nil)
		s.mux.Abandon()
		return nil, err
	}
	if err := checkPairing(t); err != nil {
		req.Reject(nil)
		s.mux.Abandon()
		return nil, fmt.Errorf("rnet: prepare a session: %w", err)
	}
	if !l.adopt(s) {
		withdraw(req)
		s.mux.Abandon()
		return nil, net.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	a.waits()
	conn, err := req.Accept(ctx, s.over.QP(), s.connParam())
	if err != nil {
		l.forget(s)
		s.mux.Abandon()
		return nil, err
	}
	s.mux.SetAddrs(netip.AddrPortFrom(conn.LocalAddr().Addr(), l.addrPort().Port()), conn.RemoteAddr())
	s.connected(conn)
	if err := s.mux.AwaitPeer(ctx, conn.Err); err != nil {
		return nil, err
	}
	a.answered()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// withdraw refuses a peer of a listener that is closed, so that it looks for
// another one at once.
func withdraw(req rcm.Request) {
	if w, ok := req.(interface{ Withdraw() error }); ok {
		w.Withdraw()
		return
	}
	req.Reject(nil)
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
	if l.draining && len(l.sessions) == 0 {
		l.drained()
	}
}

// retireAll ends sessions of a listener by retire. Their other ends in this process
// are told directly: they get a GO_AWAY too, but take it in only when a goroutine polls,
// and a dial to the next listener at the port may come before that.
func retireAll(sessions []*session, retire func(*mux.Mux)) {
	here := make(map[uint64]bool) // the tokens of the other ends
	for _, s := range sessions {
		if s.mux.PeerIsLocal() {
			here[s.mux.Peer().Token] = true
		}
		retire(s.mux)
	}
	if len(here) == 0 {
		return
	}
	for _, s := range liveSessions.list() {
		if s.mux.Config().Dialed && here[s.mux.Token()] {
			s.mux.PeerLeaves()
		}
	}
}
