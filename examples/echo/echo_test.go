package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the server process that the client
// starts.
func TestMain(m *testing.M) { programtest.Main(m, "-listen", main) }

func TestTwoProcessesEcho(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, echo(t.Context(), []string{"-n", "100"}, &out))
	require.Contains(t, out.String(), "100 messages of 64 bytes echoed")
	killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
}

// serveHere runs a server in this process and returns its address and what
// ends it.
func serveHere(t *testing.T) (addr string, shutDown func() error) {
	t.Helper()
	return serveAt(t, "127.0.0.1:0")
}

func serveAt(t *testing.T, at string) (addr string, shutDown func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(ctx, at, w)
		w.CloseWithError(io.ErrUnexpectedEOF)
		done <- err
	}()
	line := make([]byte, 256)
	n, err := r.Read(line) // ended by the announcement, or by serve's return
	require.NoError(t, err)
	_, addr, _ = strings.Cut(strings.TrimSpace(string(line[:n])), "listening on ")
	return addr, func() error {
		cancel()
		return <-done // ended by cancel
	}
}

func TestClientAndServerShareAProcess(t *testing.T) {
	addr, shutDown := serveHere(t)
	require.NoError(t, echo(t.Context(), []string{"-n", "100", "-dial", addr}, io.Discard))
	require.NoError(t, shutDown())
}

func TestAUnixSocketIsServed(t *testing.T) {
	addr, shutDown := serveAt(t, filepath.Join(t.TempDir(), "echo.sock"))
	var out bytes.Buffer
	require.NoError(t, echo(t.Context(), []string{"-n", "100", "-dial", addr}, &out))
	killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
	conn, err := net.Dial("unix", addr)
	require.NoError(t, err)
	defer conn.Close()
	if os.Getenv("RNET_TRANSPORT") != "soft" {
		_, err = conn.Write([]byte("plain"))
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 5))
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close())
	require.NoError(t, shutDown())
}

func TestAPlainTCPClientIsServedIfTheEnvironmentAllowsTCP(t *testing.T) {
	addr, shutDown := serveHere(t)
	conn, err := net.Dial("tcp", addr)
	switch os.Getenv("RNET_TRANSPORT") {
	case "", "auto", "tcp":
		require.NoError(t, err)
		require.Equal(t, "hello", exchange(t, conn, "hello"))
		require.NoError(t, conn.Close())
	default:
		if err == nil { // the reset may come before the dial has returned
			_, err = io.ReadAll(conn)
			require.NoError(t, conn.Close())
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	require.NoError(t, shutDown())
}

func TestTheEchoIsCompleteAfterAHalfClose(t *testing.T) {
	addr, shutDown := serveHere(t)
	conn, err := rnet.Dial("tcp", addr)
	require.NoError(t, err)
	long := strings.Repeat("0123456789", 10000)
	require.Equal(t, long, exchange(t, conn, long))
	require.NoError(t, conn.Close())
	require.NoError(t, shutDown())
}

// exchange sends text as all there is and returns what comes back.
func exchange(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	echoed, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(echoed)
}

func TestShutdownEndsIdleConnectionsAfterTheirEchoes(t *testing.T) {
	addr, shutDown := serveHere(t)
	conn, err := rnet.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "hello")
	require.NoError(t, err)
	echoed := make([]byte, 5)
	_, err = io.ReadFull(conn, echoed)
	require.NoError(t, err)

	require.NoError(t, shutDown())
	_, err = conn.Read(echoed)
	require.Equal(t, io.EOF, err)
}

func TestACountOfNothingIsRefused(t *testing.T) {
	require.ErrorContains(t, echo(t.Context(), []string{"-n", "0"}, io.Discard), "-n must be at least 1")
}

func TestNobodyListensIsAnError(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.Error(t, call(ctx, programtest.NobodysAddress(t), 1, io.Discard))
}
