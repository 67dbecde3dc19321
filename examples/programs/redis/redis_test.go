package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/examples/programs/internal/foreign"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

func needServer(t *testing.T) {
	t.Helper()
	_, err := foreign.Find("redis-server", "redis-server")
	skip.Because(t, err)
}

func TestTheClientReachesARealServerThroughTheProxy(t *testing.T) {
	needServer(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-n", "200"}, &out))
	require.Contains(t, out.String(), "200 rounds in")
	killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
}

func TestAClientThatIsInterruptedDeletesItsKeys(t *testing.T) {
	needServer(t)
	s, err := start(t.Context(), t.TempDir())
	require.NoError(t, err)
	defer func() { require.NoError(t, s.stop()) }()
	c := client{addr: s.proxy.Addr, rounds: 1 << 30, workers: 4}
	db := c.connect(redis.Options{})
	defer db.Close()
	keys := func() int { return len(db.Keys(t.Context(), "ramjet:*").Val()) }
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx, io.Discard) }()
	require.Eventually(t, func() bool { return keys() > 0 }, time.Minute, time.Millisecond)
	interrupt()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Zero(t, keys())
}

func TestNoProxyIsAnError(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), []string{"-n", "1", "-dial", programtest.NobodysAddress(t)}, io.Discard), "refused")
}

// kind takes the error of clients that come while the server reads its file for that of
// clients that come earlier.
func kind(err error) string {
	if redis.IsLoadingError(err) {
		return killtest.Lost
	}
	return killtest.Kind(err)
}

// startTrial starts the service for a test, with a client that shows every
// failure instead of trying again itself.
func startTrial(t *testing.T, dialer rnet.Dialer) (*service, killtest.Trial) {
	t.Helper()
	s, err := start(context.Background(), t.TempDir())
	require.NoError(t, err)
	c := client{addr: s.proxy.Addr, dialer: dialer}
	db := c.connect(redis.Options{MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() {
		require.NoError(t, db.Close())
		require.NoError(t, s.stop())
	})
	workers := make([]worker, 8)
	for i := range workers {
		workers[i] = worker{db: db, prefix: fmt.Sprint("ramjet:", i, ":"), maxValue: 4 << 10}
	}
	return s, killtest.Trial{
		Address: s.proxy.Addr,
		Workers: len(workers),
		Kind:    kind,
		Do:      func(ctx context.Context, w int) error { return workers[w].round(ctx) },
	}
}

func TestAKilledProxyIsSeenAsOverTCP(t *testing.T) {
	needServer(t)
	killtest.Compare(t, func(t *testing.T, dialer rnet.Dialer) killtest.Trial {
		s, trial := startTrial(t, dialer)
		trial.Kill = s.proxy.Kill
		trial.Restart = func() error { return s.proxy.Start(context.Background()) }
		return trial
	})
}

func TestAKilledServerIsSeenAsOverTCP(t *testing.T) {
	needServer(t)
	killtest.Compare(t, func(t *testing.T, dialer rnet.Dialer) killtest.Trial {
		s, trial := startTrial(t, dialer)
		trial.Kill = s.redis.Kill
		trial.Restart = func() error { return s.redis.Start(context.Background()) }
		trial.Behind = true
		return trial
	})
}
