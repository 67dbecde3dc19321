// Package endpointtest runs the examples for verbs users on the devices that are there.
package endpointtest

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint"
	"github.com/seed-b9b531af/ramjet/internal/testhost"
)

// Main lets a test program be the server process that the client starts.
func Main(m *testing.M, main func()) {
	if len(os.Args) > 1 && os.Args[1] == "-listen" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Run runs the program on the software HCA, and on the devices that the machine has for
// tests: rxe in the virtual machine, a ConnectX on the model. It has to print want.
func Run(t *testing.T, p *endpoint.Program, want string) {
	devices := []string{"soft0"}
	for _, d := range testhost.Devices() {
		if d.Name != "siw0" { // iWARP connects by a connection manager alone
			devices = append(devices, d.Name)
		}
	}
	for _, device := range devices {
		t.Run(device, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, p.Run(t.Context(), []string{"-n", "50", "-device", device}, &out))
			require.Contains(t, out.String(), want)
			t.Log(strings.TrimSpace(out.String()))
		})
	}
}

// ServesOn lets clients of the program break off at some moment, after which the server serves
// the next one.
func ServesOn(t *testing.T, p *endpoint.Program) {
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	for _, soon := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		require.Error(t, p.Run(ctx, []string{"-n", "100000000", "-dial", server.Addr}, io.Discard))
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, p.Run(ctx, []string{"-n", "5", "-dial", server.Addr}, io.Discard))
	require.NoError(t, server.Stop())
}

// EndsWithItsServer kills the server while a client of the program is at work.
func EndsWithItsServer(t *testing.T, p *endpoint.Program) {
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, []string{"-n", "1000000000", "-dial", server.Addr}, io.Discard) }()
	time.Sleep(100 * time.Millisecond) // at any moment it ends
	require.NoError(t, server.Kill())
	err = <-ended // ended by the server's end, or by ctx
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}
