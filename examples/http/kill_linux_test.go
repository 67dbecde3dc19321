package main

import (
	"context"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/loopback"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// variant is a protocol with or without TLS.
type variant struct {
	name          string
	http2, secure bool
}

var variants = []variant{
	{name: "http1"},
	{name: "http1 with TLS", secure: true},
	{name: "http2", http2: true},
	{name: "http2 with TLS", http2: true, secure: true},
}

// start starts a server process and returns it with a client for it, and what
// starts it again.
func (v variant) start(t *testing.T, dialer rnet.Dialer) (server *child.Process, c *client, again func(addr string) *child.Process) {
	t.Helper()
	c = &client{http2: v.http2, maxBody: 64 << 10, workers: 8, dialer: dialer}
	args, scheme := []string(nil), "http://"
	if v.secure {
		cert, key, err := makeCertificate(t.TempDir())
		require.NoError(t, err)
		args, scheme, c.ca = []string{"-cert", cert, "-key", key}, "https://", cert
	}
	again = func(addr string) *child.Process {
		p, err := child.Start(context.Background(), append([]string{"-listen", addr}, args...)...)
		require.NoError(t, err)
		return p
	}
	server = again(killtest.FreeAddress(t))
	c.url = scheme + server.Addr
	require.NoError(t, c.connect())
	return server, c, again
}

func TestTheBytesDoNotGoOverTCP(t *testing.T) {
	if !loopback.Alone(t) {
		return
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			loopback.Compare(t, func(t *testing.T, over rnet.Transport) int64 {
				server, c, _ := v.start(t, rnet.Dialer{Transport: over})
				defer server.Stop()
				defer c.http.CloseIdleConnections()
				c.requests = 200
				transferred, err := c.spread(t.Context())
				require.NoError(t, err)
				return transferred
			})
		})
	}
}

// kind also knows what net/http says of a connection that ended before the
// first byte of an answer, and of the other requests on an HTTP/2 connection when
// it was one of them that noticed, by a write, or when it had just been made.
func kind(err error) string {
	if strings.HasSuffix(err.Error(), "http: server closed idle connection") {
		return killtest.Ended
	}
	if strings.Contains(err.Error(), "http2: client conn") {
		return killtest.Lost
	}
	return killtest.Kind(err)
}

func TestAKilledServerIsSeenAsOverTCP(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			killtest.Compare(t, func(t *testing.T, dialer rnet.Dialer) killtest.Trial {
				server, c, again := v.start(t, dialer)
				t.Cleanup(func() {
					c.http.CloseIdleConnections()
					require.NoError(t, server.Stop())
				})
				return killtest.Trial{
					Address: server.Addr,
					Workers: c.workers,
					Do: func(ctx context.Context, _ int) error {
						_, err := c.request(ctx)
						return err
					},
					Kind: kind,
					Kill: func() error { return server.Kill() },
					Restart: func() error {
						server = again(server.Addr)
						return nil
					},
				}
			})
		})
	}
}
