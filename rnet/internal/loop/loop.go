// Package loop is the contract between rnet and the event loops of rnet/rgnet.
//
// An event loop has a [Poller], and calls it from its one goroutine. Sessions
// are given to the poller by [Listen] and [Dial]; from then on nobody else
// polls them. What happens to their streams the poller tells the streams'
// sinks, during Poll, Arm and Attach, so on the loop's goroutine, one at a time.
package loop

import (
	"context"
	"io"
	"log/slog"
	"net"
	"time"
)

// Owner is the event loop as its poller sees it.
type Owner interface {
	// Ring makes the loop call Poll soon. Any goroutine may call it, often,
	// and with locks held: it does not wait.
	Ring()
	// Accept returns the sink of a stream that a peer has opened, nil to
	// refuse it. It may be called by any goroutine; the sink's Opened comes
	// from the loop's.
	Accept(Stream) Sink
}

// Sink is told what happens to one stream.
type Sink interface {
	// Opened comes first.
	Opened()
	// Readable brings bytes. They are valid until it returns.
	Readable(p []byte)
	// Writable follows after a Write that did not take everything.
	Writable()
	// Ended says that no more bytes come: io.EOF after the peer's last, or
	// why the stream broke. The stream is to be closed then.
	Ended(err error)
	// Buffered returns how many bytes the sink holds: that came and were not
	// taken by the handler, and that wait for room. Any goroutine may ask,
	// with locks held.
	Buffered() (inbound, outbound int)
}

// Stream is a stream as its event loop uses it, from the loop's goroutine.
type Stream interface {
	// Write takes as much of p as there is room for. If that is not all,
	// Writable follows.
	Write(p []byte) (int, error)
	// Flush sends what is being gathered for one message, of this stream and
	// others.
	Flush()
	// Close ends the stream. What Write took is delivered, unless reset is true,
	// and the peer is told by a reset if something has come that the sink was not
	// told of. The sink is told no more.
	Close(reset bool)
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// Poller polls the sessions of one event loop. Its methods are called from the
// loop's goroutine, but for Rouse and Sessions.
type Poller interface {
	// Poll takes in a batch from each session that may have something, and
	// returns how much there was.
	Poll() int
	// Arm makes the next arrival on any session ring the loop. It returns
	// false if there is work already: Poll again.
	Arm() bool
	// Doze lets the loop's thread sleep until something arrives, Rouse is
	// called, or the time has come, where that wakes up faster than Ring does.
	// It returns false if it does not here: nothing was done then. What comes
	// while it falls asleep may, rarely, be noticed only when the time has come.
	Doze(until time.Time) bool
	// Rouse ends the present Doze, with the same exception. Any goroutine may
	// call it.
	Rouse()
	// Spin returns how long the profile lets the loop poll in vain.
	Spin() time.Duration
	// Near reports whether all peers that were busy lately run on the CPU of
	// the caller, and so cannot do anything while it polls.
	Near() bool
	// Attach makes conn, which Dial returned, a stream with that sink, and
	// tells the sink of what has come. It returns nil if conn is not a stream
	// of this poller, or its session has come to an end.
	Attach(conn net.Conn, sink func(Stream) Sink) Stream
	// Turn counts a turn of the loop.
	Turn()
	// Sessions returns how many sessions the poller has. Any goroutine may
	// ask.
	Sessions() int
	// Close hands the sessions back, after the loop has closed its streams.
	Close()
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

// Policy is which peers are served, and who is told of decisions.
type Policy struct {
	TCP, Accelerated bool
	Log              *slog.Logger // never nil
}

// What rnet has for event loops. It is set when package rnet is initialized;
// config is a *rnet.ListenConfig, dialer a *rnet.Dialer.
var (
	// NewPoller makes a poller with the profile of config.
	NewPoller func(owner Owner, config any) (Poller, error)
	// Listen listens beside a TCP listener that stands at the address already.
	// Each session goes to the poller that place chooses by the peer's
	// address. It returns nil without an error if the configuration is for TCP
	// alone. With the transport "auto" a device that cannot listen is left
	// out.
	Listen func(config any, network string, at *net.TCPAddr, place func(peer net.Addr) Poller) (Listener, error)
	// ListenFirst is Listen before there is the TCP listener, so that a peer
	// that finds one finds this, too. The port must be named. It fails if a TCP
	// listener with such a socket could not be opened, because there is one for
	// example. Peers wait until ready is closed, for as long as they want to,
	// but at most until the listener is closed.
	ListenFirst func(config any, network string, at *net.TCPAddr, socket Socket, ready <-chan struct{}, place func(peer net.Addr) Poller) (Listener, error)
	// Resolve returns what config and the environment together want.
	Resolve func(config any) (Policy, error)
	// Dial is Dialer.DialContext, but that streams are opened on sessions of
	// the poller.
	Dial func(ctx context.Context, dialer any, network, address string, p Poller) (net.Conn, error)
)
