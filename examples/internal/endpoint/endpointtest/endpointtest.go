// Package endpointtest runs the examples for verbs users on the devices that are there.
package endpointtest

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint"
)

// Main lets a test program be the server process that the client starts.
func Main(m *testing.M, main func()) {
	if len(os.Args) > 1 && os.Args[1] == "-listen" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Run runs the program on the software HCA, and on rxe where RAMJET_DEVICES names it. It
// has to print want.
func Run(t *testing.T, p *endpoint.Program, want string) {
	devices := []string{"soft0"}
	if slices.Contains(strings.Split(os.Getenv("RAMJET_DEVICES"), ","), "rxe0") {
		devices = append(devices, "rxe0")
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
