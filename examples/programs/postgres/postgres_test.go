package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/examples/programs/internal/foreign"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

func needServer(t *testing.T) {
	t.Helper()
	_, err := foreign.Find("postgres", "postgresql")
	skip.Because(t, err)
}

func TestTheClientReachesARealServerThroughTheProxy(t *testing.T) {
	needServer(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-n", "100"}, &out))
	require.Contains(t, out.String(), "100 transactions in")
	killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
}

// interrupter is an interrupt right after the table was made.
type interrupter struct{ interrupt context.CancelFunc }

type makesTable struct{} // key of a query's context

func (interrupter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, makesTable{}, strings.HasPrefix(q.SQL, "create table"))
}

func (i interrupter) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(makesTable{}) == true {
		i.interrupt()
	}
}

func TestAnInterruptLeavesNoTable(t *testing.T) {
	needServer(t)
	dir, err := os.MkdirTemp("", "postgres") // t.TempDir is closed to other users
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	s, err := start(t.Context(), dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.stop()) }()
	ctx, interrupt := context.WithCancel(t.Context())
	config, err := pgx.ParseConfig(s.url())
	require.NoError(t, err)
	config.DialFunc = new(rnet.Dialer).DialContext
	config.Tracer = interrupter{interrupt}
	c := client{db: stdlib.OpenDB(*config)}
	defer c.db.Close()
	require.ErrorIs(t, c.open(ctx), context.Canceled)
	require.NoError(t, c.open(t.Context()))
}

func TestNoProxyIsAnError(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), []string{"-url", urlOf(programtest.NobodysAddress(t))}, io.Discard), "refused")
}

// kind takes together the errors of clients whose connection ends, which depend on
// what it was used for, and those of clients that come while the server starts.
func kind(err error) string {
	var answer *pgconn.PgError
	switch {
	case errors.As(err, &answer) && (answer.Code == "57P01" || answer.Code == "57P03"):
		return killtest.Lost // admin_shutdown, cannot_connect_now
	case err.Error() == "conn closed":
		return killtest.Lost // noticed by pgx before it was used again
	}
	return killtest.Kind(err)
}

// startTrial starts the service for a test, and a client.
func startTrial(t *testing.T, dialer rnet.Dialer) (*service, killtest.Trial) {
	t.Helper()
	dir, err := os.MkdirTemp("", "postgres") // t.TempDir is closed to other users
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := start(context.Background(), dir)
	require.NoError(t, err)
	c := client{url: s.url(), workers: 8, dialer: dialer}
	require.NoError(t, c.connect())
	require.NoError(t, c.open(t.Context()))
	t.Cleanup(func() {
		require.NoError(t, c.audit(context.Background()))
		require.NoError(t, c.db.Close())
		require.NoError(t, s.stop())
	})
	return s, killtest.Trial{
		Address: c.addr,
		Workers: c.workers,
		Do:      func(ctx context.Context, _ int) error { return c.transfer(ctx) },
		Kind:    kind,
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
		trial.Kill = s.postgres.Kill
		trial.Restart = func() error { return s.restart(context.Background()) }
		trial.Behind = true
		return trial
	})
}
