// Package loop is what rnet has for the event loops of rnet/rgnet beside its public
// API: dials and listeners whose sessions go to a [mux.Poller].
package loop

import (
	"context"
	"io"
	"log/slog"
	"net"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// Socket is what a TCP listener that is to be opened will be like.
type Socket struct {
	V6, V6Only, ReuseAddr, ReusePort bool
}

// Listener listens for streams beside a TCP listener of somebody else's.
type Listener interface {
	io.Closer
	Addr() net.Addr
	// CountTCP counts a connection that came over TCP, in the statistics of
	// the address.
	CountTCP()
}

// Policy is which peers are served, and who is told of decisions.
type Policy struct {
	TCP, Accelerated bool
	Profile          fallback.Profile
	Log              *slog.Logger // never nil
}

// What rnet has for event loops. It is set when package rnet is initialized;
// config is a *rnet.ListenConfig, dialer a *rnet.Dialer.
var (
	// Listen listens beside a TCP listener that stands at the address already.
	// Each session goes to the poller that place chooses by the peer's
	// address. It returns nil without an error if the configuration is for TCP
	// alone. With the transport "auto" a device that cannot listen is left
	// out.
	Listen func(config any, network string, at *net.TCPAddr, place func(peer net.Addr) *mux.Poller) (Listener, error)
	// ListenFirst is Listen before there is the TCP listener, so that a peer
	// that finds one finds this, too. The port must be named. It fails if a TCP
	// listener with such a socket could not be opened, because there is one for
	// example. Peers wait until ready is closed, for as long as they want to,
	// but at most until the listener is closed.
	ListenFirst func(config any, network string, at *net.TCPAddr, socket Socket, ready <-chan struct{}, place func(peer net.Addr) *mux.Poller) (Listener, error)
	// Resolve returns what config and the environment together want.
	Resolve func(config any) (Policy, error)
	// Dial is Dialer.DialContext, but that streams are opened on sessions of
	// the poller. It returns the stream too, if the connection is one.
	Dial func(ctx context.Context, dialer any, network, address string, p *mux.Poller) (net.Conn, *mux.Stream, error)
)
