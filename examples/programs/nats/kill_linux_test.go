package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/loopback"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

func TestTheBytesDoNotGoOverTCP(t *testing.T) {
	if !loopback.Alone(t) {
		return
	}
	loopback.Compare(t, func(t *testing.T, over rnet.Transport) int64 {
		server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
		require.NoError(t, err)
		c := client{addr: server.Addr, messages: 500, requests: 100, workers: 4, maxBody: 16 << 10, dialer: rnet.Dialer{Transport: over}}
		require.NoError(t, c.run(t.Context(), t.Output()))
		require.NoError(t, server.Stop())
		// more than once, half of it on average
		return int64((c.messages + c.requests) * c.maxBody / 2)
	})
}

// kind takes together the two ways in which an answer does not come: while the
// requests' connection is not there yet, and while that of who answers is not.
func kind(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) {
		return "no answer"
	}
	return killtest.Kind(err)
}

// NATS's client connects again by itself. What its user sees is requests
// without an answer, for as long as that takes.
func TestAKilledServerIsSeenAsOverTCP(t *testing.T) {
	killtest.Compare(t, func(t *testing.T, dialer rnet.Dialer) killtest.Trial {
		server, err := child.Start(context.Background(), "-listen", killtest.FreeAddress(t))
		require.NoError(t, err)
		c := client{addr: server.Addr, maxBody: 4 << 10, dialer: dialer}
		options := []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0)}
		near, err := c.connect(options...)
		require.NoError(t, err)
		far, err := c.connect(options...)
		require.NoError(t, err)
		require.NoError(t, c.answer(far))
		t.Cleanup(func() {
			near.Close()
			far.Close()
			require.NoError(t, server.Stop())
		})
		return killtest.Trial{
			Address: server.Addr,
			Workers: 8,
			Do: func(ctx context.Context, _ int) error {
				ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				return c.request(ctx, near)
			},
			Kind:    kind,
			Kill:    server.Kill,
			Restart: func() error { return server.Restart(context.Background()) },
		}
	})
}
