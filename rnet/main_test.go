package rnet

import (
	"flag"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

var (
	fullRun = flag.Bool("full", false, "run the long tests at full length: 100,000 HTTP requests, 1000 kills")
	soakFor = flag.Duration("soak", 3*time.Second, "how long TestSoak runs")
)

// playPeer is what the test binary does on the peer's machine, where there are
// two; nil elsewhere.
var playPeer func() error

// TestMain turns the test binary into a peer process when a test started it
// as one, and otherwise fails if the tests leave something behind once all
// sessions have gone idle.
func TestMain(m *testing.M) {
	roles.Play()
	if playPeer != nil {
		if err := playPeer(); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		ln.Close() // starts the runtime's poller, which keeps two descriptors
	}
	before := countResources()
	code := m.Run()
	if code == 0 {
		if left := before.leftovers(); left != "" {
			fmt.Fprintln(os.Stderr, "leak:", left)
			code = 1
		}
	}
	os.Exit(code)
}

// times returns full in a full run, and few otherwise.
func times(few, full int) int {
	if *fullRun {
		return full
	}
	return few
}
