package rnet

import (
	"flag"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

var (
	fullRun = flag.Bool("full", false, "run the long tests at full length: 100,000 HTTP requests, 1000 kills")
	soakFor = flag.Duration("soak", 3*time.Second, "how long TestSoak runs")
)

// TestMain turns the test binary into a peer process when a test started it
// as one, and otherwise fails if the tests leave something behind once all
// sessions have gone idle.
func TestMain(m *testing.M) {
	roles.Play()
	leak.MainOnceIdle(m)
}

// orRaced returns usual, and under the race detector few: it finds a race of two goroutines the first
// time, and each time takes ten times as long.
func orRaced(usual, few int) int {
	if race.Enabled && !*fullRun {
		return few
	}
	return usual
}

// times returns full in a full run, and few otherwise.
func times(few, full int) int {
	if *fullRun {
		return full
	}
	return few
}
