package rnet

import (
	"net"
	"net/netip"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// A server that starts must not serve TCP before it serves streams: a peer that
// dials it again and again would come in between, and keep that connection over
// TCP for as long as it lives. So where the port is named:
//
//  1. The port is held: bound, but nobody listens there. If somebody else does,
//     nothing of ours is opened, and the TCP listener says so.
//  2. The fabrics' listeners are opened.
//  3. The port is let go, and the TCP listener opened. If it fails the fabrics'
//     are closed, and its error is the one that there is.
//
// Where any port will do, nobody knows it before Listen returns, and the TCP
// listener, which finds it, comes first.

// listenFirst does 1, 2 and the first half of 3. It is the part of a TCP
// listener's Control that comes after the user's: c is the socket that package
// net is about to bind to the address, which it has resolved, with all options
// that it will have. It returns nil if TCP must come first.
func (lc *ListenConfig) listenFirst(network, address string, c syscall.RawConn, set settings.Settings) *Listener {
	at, err := parseLocal(address)
	if err != nil || at.Port() == 0 {
		return nil
	}
	options, err := optionsOf(c, network == "tcp6")
	if err != nil {
		return nil
	}
	l, err := lc.holdAndListen(network, at, options, set, nil)
	if err != nil {
		set.Log.Debug("rnet: listen over TCP first", "address", address, "err", err)
		return nil
	}
	return l
}

// parseLocal parses an address to listen at, whose host may be empty.
func parseLocal(address string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host == "" {
		address = net.JoinHostPort(netip.IPv6Unspecified().String(), port)
	}
	return netip.ParseAddrPort(address)
}

// holdAndListen listens on the fabrics, while it holds the port with a socket
// of these options. The listener has no TCP listener yet.
func (lc *ListenConfig) holdAndListen(network string, at netip.AddrPort, options socketOptions, set settings.Settings, loops *loopChoice) (*Listener, error) {
	port, held, err := holdPort(at, options)
	if err != nil {
		return nil, err
	}
	defer port.Close()
	l := newListener(held, network, set, loops)
	l.v6Only = options.v6Only
	if err := l.listenFabrics(lc.Peers, false); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
