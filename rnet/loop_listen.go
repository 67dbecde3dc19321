package rnet

import (
	"net"
	"net/netip"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// listenForLoops listens beside a TCP listener of somebody else's, for peers that are
// not served over TCP. Their sessions go to event loops.
func (lc *ListenConfig) listenForLoops(request *loop.Listen, network, address string, set settings.Settings) (net.Listener, error) {
	if set.Transport == fallback.TCP {
		return nil, nil
	}
	at, err := parseLocal(address)
	if err != nil {
		return nil, err
	}
	choice := &loopChoice{request.Ready, request.Place}
	if request.First != nil {
		return lc.listenForLoopsFirst(request.First, network, at, set, choice)
	}
	l := newListener(net.TCPAddrFromAddrPort(at), network, set, choice)
	l.v6Only = request.V6Only
	if err := l.listenFabrics(lc.Peers, false); err != nil {
		l.Close()
		return nil, &net.OpError{Op: "listen", Net: network, Addr: l.addr, Err: err}
	}
	return besideTCP{l}, nil
}

// listenForLoopsFirst is listenForLoops where somebody else is to open a TCP listener,
// see listen_first.go.
func (lc *ListenConfig) listenForLoopsFirst(socket *loop.Socket, network string, at netip.AddrPort, set settings.Settings, choice *loopChoice) (net.Listener, error) {
	if at.Port() == 0 {
		return nil, nil
	}
	options := socketOptions{family: syscall.AF_INET, v6Only: socket.V6Only, reuseAddr: socket.ReuseAddr, reusePort: socket.ReusePort}
	if socket.V6 {
		options.family = syscall.AF_INET6
	}
	l, err := lc.holdAndListen(network, at, options, set, choice)
	if err != nil {
		return nil, err
	}
	return besideTCP{l}, nil
}

// besideTCP is a listener whose TCP peers somebody else serves, a loop.Listener.
type besideTCP struct{ *Listener }

// CountTCP counts one of those.
func (b besideTCP) CountTCP() { b.overTCP.Add(1) }

// countStream counts a stream that a peer has opened and an event loop serves.
func (l *Listener) countStream() {
	l.mu.Lock()
	l.pushed++
	l.mu.Unlock()
}
