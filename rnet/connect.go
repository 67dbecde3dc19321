package rnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// way is how an address can be reached.
type way struct {
	here   *fabric   // that of this host, if a process of it listens there
	route  rcm.Route // over it; nil if its queue was full, then it is to be asked again
	others []fabric  // that have to ask the network
	err    error     // why it is no fabric that was asked before
}

// close gives up what was not used.
func (w *way) close() {
	if w.route != nil {
		w.route.Close()
		w.route = nil
	}
}

// isHere reports whether a process of this host listens that we may connect to. In a directory
// anybody may seem to, until he has shown the key.
func (w *way) isHere() bool {
	if r, ok := w.route.(interface{ Known() bool }); ok && !r.Known() {
		return false
	}
	return w.here != nil
}

// look asks the fabrics for a way to the address. It does not wait.
func (a *attempt) look(ctx context.Context, addr netip.AddrPort) (*way, error) {
	w := new(way)
	for _, f := range fabricsAt(a.socket, a.set) {
		if f.transport != fallback.Soft {
			if err := f.Reaches(addr); err == nil {
				w.others = append(w.others, f)
			} else {
				// Of a device that cannot be there nothing has to be said if
				// there is more to say.
				w.err = worse(because(f.transport, err), w.err)
			}
			continue
		}
		route, err := f.Resolve(ctx, f.at(addr))
		if err != nil && !errors.Is(err, rcm.ErrBusy) {
			w.err = worse(w.err, because(f.transport, err))
			continue
		}
		w.route, w.here = route, &f
	}
	switch {
	case w.here != nil || len(w.others) > 0:
		return w, nil
	case w.err == nil:
		return nil, fallback.Because(fallback.NoDevice, rcm.ErrNoRoute)
	}
	return nil, w.err
}

// connect sets up a session to addr, over the first fabric that reaches it.
// onEnd, if set, is called when it takes no more streams.
func connect(ctx context.Context, addr netip.AddrPort, a *attempt, w *way, ps *pendingSession, onEnd func(*session)) (*session, error) {
	defer w.close()
	queued := fmt.Errorf("rnet: wait for %d sessions that are being set up", maxSetUps)
	ps.waits(always, queued)
	if err := setUps.Enter(ctx); err != nil {
		return nil, fallback.Because(fallback.Admission, fmt.Errorf("%w: %w", queued, err))
	}
	defer setUps.Leave()
	if w.here != nil {
		s, err := connectBusy(ctx, addr, a, w, ps, onEnd)
		if err == nil {
			return s, nil
		}
		w.err = worse(w.err, because(w.here.transport, err))
	}
	ps.waits(never, nil)
	for _, f := range w.others {
		if ctx.Err() != nil {
			break // the other fabrics would only return the context's error
		}
		route, err := f.Resolve(ctx, f.at(addr))
		var s *session
		if err == nil {
			s, err = connectOver(ctx, f, route, addr, a, onEnd)
		}
		if err == nil {
			return s, nil
		}
		w.err = worse(w.err, because(f.transport, err))
	}
	return nil, w.err
}

// connectBusy is connectOver for a listener on this host. One that has more
// requests than it takes is asked again.
func connectBusy(ctx context.Context, addr netip.AddrPort, a *attempt, w *way, ps *pendingSession, onEnd func(*session)) (*session, error) {
	const most = 100 * time.Millisecond
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, most) {
		route, err := w.route, error(nil)
		if w.route = nil; route == nil {
			route, err = w.here.Resolve(ctx, w.here.at(addr))
		}
		lives := never // whose queue in the kernel is full may be stopped
		if err == nil {
			if t, ok := route.(interface {
				Taken() bool
				Ran() uint64
			}); ok {
				ps.step.Store(&step{busy: t.Taken, ran: t.Ran})
			}
			var s *session
			if s, err = connectOver(ctx, *w.here, route, addr, a, onEnd); err == nil {
				return s, nil
			}
			lives = always // and said so: this is its queue, as it were
		}
		if !errors.Is(err, rcm.ErrBusy) {
			return nil, err
		}
		ps.waits(lives, err)
		select { // ended by the clock or ctx
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func connectOver(ctx context.Context, f fabric, route rcm.Route, addr netip.AddrPort, a *attempt, onEnd func(*session)) (*session, error) {
	cfg := a.set.Session
	if a.d.Dedicated {
		cfg.Streams = 1 // so the listener sets no addresses aside for more
	}
	s, err := newSession(route.Device(), cfg, mux.Config{Dialed: true, Alone: a.d.Dedicated, Poller: a.poller}, a.set.Log)
	if err != nil {
		route.Close()
		return nil, err
	}
	s.transport, s.onEnd = f.transport, onEnd
	s.unix = a.unixAddrs()
	s.goesOver(route.Port())
	if err := checkPairing(f.transport); err != nil {
		route.Close()
		s.mux.Abandon()
		return nil, fmt.Errorf("rnet: prepare a session: %w", err)
	}
	conn, err := route.Connect(ctx, s.over.QP(), s.connParam())
	if err != nil {
		if !s.over.Immediates() {
			// siw connects in the kernel, where nothing ends it but TCP, after
			// two minutes, and a QP is not destroyed before.
			go s.mux.Abandon()
		} else {
			s.mux.Abandon()
		}
		return nil, err
	}
	if err := s.learn(conn.PrivateData()); err != nil {
		conn.Disconnect()
		s.mux.Abandon()
		return nil, err
	}
	s.mux.SetAddrs(conn.LocalAddr(), netip.AddrPortFrom(conn.RemoteAddr().Addr(), addr.Port()))
	s.connected(conn)
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// worse chooses which of two failures a dial returns: the one that says more, the later
// one if both say as much.
func worse(before, err error) error {
	if err == nil || before != nil && saying(before) > saying(err) {
		return before
	}
	return err
}

// saying ranks failures by how much they tell about the peer. The failure of a fabric that is meant
// for other devices counts least. Next is that the peer is on another host, then that something is
// missing on the way over a device or through a directory. That the peer is on this host and does
// not listen counts more: no device is needed there.
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
