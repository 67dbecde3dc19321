//go:build !linux

package rgnet

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// CountConnections returns how many connections the engine serves, -1 if it
// is not running.
func CountConnections(eng gnet.Engine) int { return eng.CountConnections() }

// rotate leaves everything to gnet: there are no devices here.
func (cfg Config) rotate(handler gnet.EventHandler, addrs []string, opts []gnet.Option) error {
	if err := cfg.check(); err != nil {
		return err
	}
	return gnet.Rotate(handler, addrs, opts...)
}

// check fails if the configuration demands what only Linux has.
func (cfg Config) check() error {
	set, err := cfg.settings()
	if err == nil && set.Transport != fallback.Auto && set.Transport != fallback.TCP {
		err = fmt.Errorf("rgnet: transport %s is for Linux", set.Transport)
	}
	return err
}

// Client is gnet.Client. Its methods may be called from any goroutine, but not
// from a callback of the handler.
type Client struct {
	gnet    *gnet.Client
	stopped atomic.Bool
}

// NewClient is NewClient with this configuration.
func (cfg Config) NewClient(handler gnet.EventHandler, opts ...gnet.Option) (*Client, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	client, err := gnet.NewClient(handler, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{gnet: client}, nil
}

// Start starts the event loops. It comes before any dial.
func (c *Client) Start() error { return c.gnet.Start() }

// Stop ends the event loops, and all connections with them. After it Dial, Enroll
// and Stop fail with ErrEngineInShutdown of gnet's package errors.
func (c *Client) Stop() error {
	if c.stopped.Swap(true) {
		return gerrors.ErrEngineInShutdown
	}
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
	return c.gnet.DialContext(network, address, ctx)
}

// Enroll serves a connection that was made elsewhere, of package net.
func (c *Client) Enroll(conn net.Conn) (gnet.Conn, error) { return c.EnrollContext(conn, nil) }

// EnrollContext is Enroll, with the context of the connection.
func (c *Client) EnrollContext(conn net.Conn, ctx any) (gnet.Conn, error) {
	if c.stopped.Load() {
		conn.Close()
		return nil, gerrors.ErrEngineInShutdown
	}
	return c.gnet.EnrollContext(conn, ctx)
}

var _ net.Conn = (*rnet.Conn)(nil) // links rnet, which fills package loop
