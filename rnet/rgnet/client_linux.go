package rgnet

import (
	"context"
	"fmt"
	"net"
	"sync"

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
	b    *bridge
	gnet *gnet.Client

	mu        sync.Mutex
	stopped   bool           // guarded by mu
	enrolling sync.WaitGroup // connections that gnet is opening; begun under mu, before stopped
}

// NewClient is NewClient with this configuration.
func (cfg Config) NewClient(handler gnet.EventHandler, opts ...gnet.Option) (*Client, error) {
	b, err := cfg.bridge(handler, opts)
	if err != nil {
		return nil, err
	}
	b.client = true
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
	err := c.b.enrollWakeSockets(func(ctx context.Context, nc net.Conn) error {
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
// and Stop fail with ErrEngineInShutdown of gnet's package errors, and so does Enroll
// after a callback has returned Shutdown.
func (c *Client) Stop() error {
	c.mu.Lock()
	stopped := c.stopped
	c.stopped = true
	c.mu.Unlock()
	if stopped {
		return gerrors.ErrEngineInShutdown
	}
	defer c.b.forget()
	c.b.call() // for good
	c.awaitEnrolling()
	return c.gnet.Stop()
}

// awaitEnrolling waits until gnet has opened what it was given: a loop that ends
// before leaves the caller waiting for ever.
func (c *Client) awaitEnrolling() {
	opened := make(chan struct{})
	go func() { // ended by gnet's loops, unless one of them has ended
		c.enrolling.Wait()
		close(opened)
	}()
	select { // ended by gnet's loops, or the end of one, which a callback has asked for
	case <-opened:
	case <-c.b.loopEnded:
	}
}

// Dial connects to the address, on network tcp, tcp4, tcp6 or another that gnet
// knows. It returns when OnOpen has been called, and has no time limit but that
// of the system.
func (c *Client) Dial(network, address string) (gnet.Conn, error) {
	return c.DialContext(network, address, nil)
}

// DialContext is Dial, with the context of the new connection.
func (c *Client) DialContext(network, address string, ctx any) (gnet.Conn, error) {
	if c.hasStopped() {
		return nil, gerrors.ErrEngineInShutdown
	}
	if !c.b.fast {
		nc, err := net.Dial(network, address) // as gnet does
		if err != nil {
			return nil, err
		}
		return c.EnrollContext(nc, ctx)
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
	c.mu.Lock()
	if c.stopped || c.b.hasLoopEnded() {
		c.mu.Unlock()
		conn.Close()
		return nil, gerrors.ErrEngineInShutdown
	}
	c.enrolling.Add(1)
	c.mu.Unlock()
	results := make(chan gnet.RegisteredResult, 1)
	go func() { // ended by the connection's loop; it stays if a callback has ended that
		defer c.enrolling.Done()
		c.b.keepAwake(conn)
		c.b.call()
		defer c.b.calls.Add(-1)
		gc, err := c.gnet.EnrollContext(conn, ctx)
		results <- gnet.RegisteredResult{Conn: gc, Err: err}
	}()
	select { // ended by the connection's loop, or the client's end
	case r := <-results:
		return r.Conn, r.Err
	case <-c.b.down:
		return nil, gerrors.ErrEngineInShutdown
	}
}

func (c *Client) hasStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// refuseStream returns what Enroll says to a stream, nil if conn is none.
func refuseStream(conn net.Conn) error {
	if !isStream(conn) {
		return nil
	}
	return fmt.Errorf("rgnet: enroll the stream to %v: no event loop serves its session; dial it by Client.Dial or EventLoop.Register: %w",
		conn.RemoteAddr(), gerrors.ErrUnsupportedOp)
}
