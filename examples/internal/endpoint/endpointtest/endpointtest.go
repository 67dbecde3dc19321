// Package endpointtest runs the examples for verbs users on the devices that are there.
package endpointtest

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
