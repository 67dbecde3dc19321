package kerneltest

import (
	"fmt"
	"os"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// TestMain turns the test binary into a peer process when a test started it as one, on the
// peer's machine into what starts such processes there, and otherwise fails if the tests leave
// something behind.
func TestMain(m *testing.M) {
	roles.Play()
	if testhost.PlaysPeer() {
		if err := serveProcesses(); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leak.MainOnceIdle(m)
}
