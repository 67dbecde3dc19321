// Package loop has what the event loops of rnet/rgnet ask of rnet beside its public API.
// They ask by the context of a call: of rnet.Dialer.DialContext for a stream on a session
// of a loop ([Dial]), of rnet.ListenConfig.Listen for a listener that gives its sessions
// to loops ([Listen]).
package loop

import (
	"context"
	"io"
	"net"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

type (
	dialKey   struct{}
	listenKey struct{}
)

// Dial asks for a stream on a session of a poller.
type Dial struct {
	Poller *mux.Poller
	// Stream is set by the dial if the connection that it returns is one.
	Stream *mux.Stream
}

// Context returns ctx with the request.
func (d *Dial) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, dialKey{}, d)
}

// DialOf returns the request of a context, nil if there is none.
func DialOf(ctx context.Context) *Dial {
	d, _ := ctx.Value(dialKey{}).(*Dial)
	return d
}

// Listen asks for a listener of streams alone, beside a TCP listener of somebody else's.
// With the transport "auto" a device that cannot listen is left out. The net.Listener
// is a [Listener]; it is nil, without an error, if the configuration is for TCP alone.
type Listen struct {
	// Place chooses the poller of a session by the peer's address.
	Place func(peer net.Addr) *mux.Poller
	// First is what the TCP listener is going to be like, nil if it stands at the address
	// already. The port must be named then. It fails if such a TCP listener could not be
	// opened, because there is one for example.
	First *Socket
	// V6Only says that the TCP listener which stands there takes no IPv4 peers.
	V6Only bool
	// Ready is closed when Place can be called; nil if it can be. Until then peers wait,
	// for as long as they want to, but at most until the listener is closed.
	Ready <-chan struct{}
}

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

// Context returns ctx with the request.
func (l *Listen) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, listenKey{}, l)
}

// ListenOf returns the request of a context, nil if there is none.
func ListenOf(ctx context.Context) *Listen {
	l, _ := ctx.Value(listenKey{}).(*Listen)
	return l
}
