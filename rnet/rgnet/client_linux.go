package rgnet

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
)

// Client is gnet.Client, but that Dial takes the fastest transport that works,
// as rnet.Dial does. Its methods may be called from any goroutine, but not from
// a callback of the handler.
//
// Each of its event loops has a session of its own to an address, and a server
// spreads sessions over its loops: a client with as many loops
// (gnet.WithMulticore, gnet.WithNumEventLoop) uses all of the server's.
type Client struct {
	b       *bridge
	gnet    *gnet.Client
	stopped atomic.Bool
}

// NewClient is NewClient with this configuration.
func (cfg Config) NewClient(handler gnet.EventHandler, opts ...gnet.Option) (*Client, error) {
	b, err := cfg.bridge(handler, opts)
	if err != nil {
		return nil, err
	}
	b.tcp = true // a dial to TCP is none of the peers'
	b.opts.LB = gnet.LeastConnections
	b.ticked = true
	client, err := gnet.NewClient(b, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{b: b, gnet: client}, nil
}

// Start starts the event loops. It comes before any dial.
func (c *Client) Start() error {
	if err := c.gnet.Start(); err != nil {
		return err
	}
	if !c.b.fast {
		return nil
	}
	err := c.b.hangBells(func(ctx context.Context, nc net.Conn) error {
		_, err := c.gnet.EnrollContext(nc, gnet.FromContext(ctx))
		return err
	})
	if err != nil {
		c.Stop()
		return err
	}
	return nil
}

// Stop ends the event loops, and all connections with them. After it Dial, Enroll
// and Stop fail with ErrEngineInShutdown of gnet's package errors.
func (c *Client) Stop() error {
	if c.stopped.Swap(true) {
		return gerrors.ErrEngineInShutdown
	}
	defer c.b.forget()
	return c.gnet.Stop()
}

// Dial connects to the address, on network tcp, tcp4, tcp6 or another that gnet
// knows. It returns when OnOpen has been called, and has no time limit but that
// of the system.
func (c *Client) Dial(network, address string) (gnet.Conn, error) {
	return c.DialContext(network, address, nil)
}

// DialContext is Dial, with the context of the new connection.
func (c *Client) DialContext(network, address string, ctx any) (gnet.Conn, error) {
	if c.stopped.Load() {
		return nil, gerrors.ErrEngineInShutdown // gnet would wait for ever
	}
	if !c.b.fast {
		return c.gnet.DialContext(network, address, ctx)
	}
	l := c.b.leastBusy()
	if l == nil {
		return nil, gerrors.ErrEmptyEngine
	}
	dialCtx, cancel := c.b.dialContext(context.Background())
	defer cancel()
	return l.dial(dialCtx, network, address, ctx, c.EnrollContext)
}

// Enroll serves a connection that was made elsewhere, of package net: a
// *net.TCPConn, *net.UnixConn or *net.UDPConn, which it takes over and closes.
//
// A *rnet.Conn cannot be enrolled. It is one stream of a session, and whoever
// polls the session gets what arrives for all of its streams: either an event
// loop from its beginning to its end, or the goroutines that read. A stream
// cannot change from one session to another. Enroll fails then with an error
// that wraps errors.ErrUnsupportedOp, and leaves the connection alone. Call Dial
// instead, which takes the same address and serves it by a session of the loop.
func (c *Client) Enroll(conn net.Conn) (gnet.Conn, error) { return c.EnrollContext(conn, nil) }

// EnrollContext is Enroll, with the context of the connection.
func (c *Client) EnrollContext(conn net.Conn, ctx any) (gnet.Conn, error) {
	if err := refuseStream(conn); err != nil {
		return nil, err
	}
	if c.stopped.Load() {
		conn.Close()
		return nil, gerrors.ErrEngineInShutdown
	}
	return c.gnet.EnrollContext(conn, ctx)
}

// refuseStream returns what Enroll says to a stream, nil if conn is none.
func refuseStream(conn net.Conn) error {
	if !isStream(conn) {
		return nil
	}
	return fmt.Errorf("rgnet: enroll the stream to %v: no event loop serves its session; dial it by Client.Dial or EventLoop.Register: %w",
		conn.RemoteAddr(), gerrors.ErrUnsupportedOp)
}
