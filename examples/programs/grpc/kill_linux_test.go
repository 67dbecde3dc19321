package main

import (
	"context"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/loopback"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

func TestTheBytesDoNotGoOverTCP(t *testing.T) {
	if !loopback.Alone(t) {
		return
	}
	loopback.Compare(t, func(t *testing.T, over rnet.Transport) int64 {
		server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
		require.NoError(t, err)
		c := client{addr: server.Addr, calls: 100, workers: 4, maxBody: 64 << 10, dialer: rnet.Dialer{Transport: over}}
		require.NoError(t, c.run(t.Context(), t.Output()))
		require.NoError(t, server.Stop())
		return int64(c.calls * c.maxBody) // half of it to and fro, in both kinds of call
	})
}

func TestAKilledServerIsSeenAsOverTCP(t *testing.T) {
	killtest.Compare(t, func(t *testing.T, dialer rnet.Dialer) killtest.Trial {
		server, err := child.Start(context.Background(), "-listen", killtest.FreeAddress(t))
		require.NoError(t, err)
		c := client{addr: server.Addr, maxBody: 16 << 10, dialer: dialer}
		quick := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, MaxDelay: 200 * time.Millisecond}
		c.options = []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second})}
		conn, err := c.connect()
		require.NoError(t, err)
		service := pb.NewTestServiceClient(conn)
		t.Cleanup(func() {
			require.NoError(t, conn.Close())
			require.NoError(t, server.Stop())
		})
		return killtest.Trial{
			Address: server.Addr,
			Workers: 8,
			Do: func(ctx context.Context, worker int) error {
				if worker%2 == 0 {
					return c.unary(ctx, service)
				}
				return c.stream(ctx, service, 10)
			},
			Kind:    func(err error) string { return status.Code(err).String() },
			Kill:    server.Kill,
			Restart: func() error { return server.Restart(context.Background()) },
		}
	})
}
