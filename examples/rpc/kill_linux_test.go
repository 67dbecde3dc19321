package main

import (
	"context"
	"errors"
	"net/rpc"
	"testing"

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
		c := client{addr: server.Addr, calls: 200, workers: 4, maxBody: 64 << 10, dialer: rnet.Dialer{Transport: over}}
		require.NoError(t, c.run(t.Context(), t.Output()))
		require.NoError(t, server.Stop())
		return int64(c.calls * c.maxBody / 2) // to and fro, half of it on average
	})
}

func TestAKilledServerIsSeenAsOverTCP(t *testing.T) {
	killtest.Compare(t, func(t *testing.T, dialer rnet.Dialer) killtest.Trial {
		server, err := child.Start(context.Background(), "-listen", killtest.FreeAddress(t))
		require.NoError(t, err)
		c := client{addr: server.Addr, workers: 8, maxBody: 16 << 10, dialer: dialer}
		conns := make([]*rpc.Client, c.workers) // each of its worker
		t.Cleanup(func() {
			for _, conn := range conns {
				require.NoError(t, conn.Close())
			}
			require.NoError(t, server.Stop())
		})
		return killtest.Trial{
			Address: server.Addr,
			Workers: c.workers,
			Do: func(ctx context.Context, worker int) (err error) {
				if conns[worker] == nil {
					if conns[worker], err = c.connect(ctx); err != nil {
						return err
					}
				}
				if err = c.call(ctx, conns[worker]); err != nil && ctx.Err() == nil {
					conns[worker].Close()
					conns[worker] = nil // net/rpc does not dial again
				}
				return err
			},
			Kind: func(err error) string {
				if errors.Is(err, rpc.ErrShutdown) { // it was lost between two calls
					return killtest.Lost
				}
				return killtest.Kind(err)
			},
			Kill:    server.Kill,
			Restart: func() error { return server.Restart(context.Background()) },
		}
	})
}
