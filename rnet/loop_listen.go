package rnet

import (
	"net"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// listenOnLoops listens beside a TCP listener of somebody else's, for peers
// that are not served over TCP. Their sessions go to event loops.
func listenOnLoops(config any, network string, at *net.TCPAddr, place func(peer net.Addr) loop.Poller) (loop.Listener, error) {
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
func listenFirstOnLoops(config any, network string, at *net.TCPAddr, socket loop.Socket, ready <-chan struct{}, place func(peer net.Addr) loop.Poller) (loop.Listener, error) {
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

func choiceOf(ready <-chan struct{}, place func(peer net.Addr) loop.Poller) *loopChoice {
	return &loopChoice{ready, func(peer net.Addr) *poller { return place(peer).(*poller) }}
}
