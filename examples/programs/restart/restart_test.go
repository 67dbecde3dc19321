//go:build unix

package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// TestMain lets the test program be the server, and the client.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "-tied" || os.Args[1] == "-dial") {
		if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
			os.Stderr.WriteString("restart: " + err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // a second for each process, otherwise
	os.Exit(m.Run())
}

// restarts is how often the server is replaced.
const restarts = 20

func TestAServerIsReplacedWithoutLoss(t *testing.T) {
	for _, transport := range []rnet.Transport{rnet.TCP, rnet.Auto} {
		t.Run(string(transport), func(t *testing.T) {
			t.Setenv("RNET_TRANSPORT", string(transport))
			server, err := start(t.Context(), "127.0.0.1:0")
			require.NoError(t, err)
			c := client{addr: server.addr, transport: transport, restarts: restarts, workers: 4}
			var out strings.Builder
			err = c.run(t.Context(), &out)
			require.NoError(t, server.stop())
			require.NoError(t, err, out.String())
			t.Log(out.String())
		})
	}
}

func TestAnInterruptEndsTheClientOfAServerThatDoesNotAnswer(t *testing.T) {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	const workers = 2
	ctx, interrupt := context.WithCancel(t.Context())
	c := client{addr: ln.Addr().String(), restarts: 1, workers: workers}
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx, io.Discard) }()
	for range 2*workers + 1 { // requests on kept connections, on new ones, and for the restart
		conn, err := ln.Accept()
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	interrupt()
	require.ErrorIs(t, hang.Receive(t, ended, "the client ends"), context.Canceled)
}
