package rnet

import (
	"context"
	"net"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

func init() {
	loop.Dial = dialOnLoop
	loop.Listen = listenOnLoops
	loop.ListenFirst = listenFirstOnLoops
	loop.Resolve = resolvePolicy
}

func dialOnLoop(ctx context.Context, dialer any, network, address string, p *mux.Poller) (net.Conn, *mux.Stream, error) {
	conn, err := dialer.(*Dialer).dial(ctx, network, address, p)
	if c, ok := conn.(*Conn); ok {
		return c, c.st, err
	}
	return conn, nil, err
}

// resolvePolicy tells which peers a configuration allows, and how to wait for them.
func resolvePolicy(config any) (loop.Policy, error) {
	set, err := config.(*ListenConfig).settings()
	return loop.Policy{
		TCP:         set.transport == fallback.Auto || set.transport == fallback.TCP,
		Accelerated: set.transport != fallback.TCP,
		Profile:     set.session.profile,
		Log:         set.log,
	}, err
}

// listenOnLoops listens beside a TCP listener of somebody else's, for peers
// that are not served over TCP. Their sessions go to event loops.
func listenOnLoops(config any, network string, at *net.TCPAddr, place func(peer net.Addr) *mux.Poller) (loop.Listener, error) {
	lc := config.(*ListenConfig)
	set, err := lc.settings()
	if err != nil || set.transport == fallback.TCP {
		return nil, err
	}
	l := newListener(at, network, set, choiceOf(nil, place))
	if err := l.listenFabrics(lc.Peers, false); err != nil {
		l.Close()
		return nil, &net.OpError{Op: "listen", Net: network, Addr: at, Err: err}
	}
	return besideTCP{l}, nil
}

// besideTCP is a listener whose TCP peers somebody else serves.
type besideTCP struct{ *Listener }

// CountTCP counts one of those.
func (b besideTCP) CountTCP() { b.overTCP.Add(1) }

// countStream counts a stream that a peer has opened and an event loop serves.
func (l *Listener) countStream() {
	l.mu.Lock()
	l.pushed++
	l.mu.Unlock()
}

// listenFirstOnLoops is listenOnLoops where somebody else is to open a TCP
// listener, see listen_first.go.
func listenFirstOnLoops(config any, network string, at *net.TCPAddr, socket loop.Socket, ready <-chan struct{}, place func(peer net.Addr) *mux.Poller) (loop.Listener, error) {
	lc := config.(*ListenConfig)
	set, err := lc.settings()
	if err != nil || set.transport == fallback.TCP || at.Port == 0 {
		return nil, err
	}
	local, err := parseLocal(at.String())
	if err != nil {
		return nil, err
	}
	options := socketOptions{family: syscall.AF_INET, v6Only: socket.V6Only, reuseAddr: socket.ReuseAddr, reusePort: socket.ReusePort}
	if socket.V6 {
		options.family = syscall.AF_INET6
	}
	l, err := lc.holdAndListen(network, local, options, set, choiceOf(ready, place))
	if err != nil {
		return nil, err
	}
	return besideTCP{l}, nil
}

func choiceOf(ready <-chan struct{}, place func(peer net.Addr) *mux.Poller) *loopChoice {
	return &loopChoice{ready, place}
}
