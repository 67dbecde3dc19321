package rcm

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain turns the test binary into a peer process when a test started it
// as one, and otherwise fails if the tests leave goroutines or descriptors.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	startPoller()
	descriptors := openDescriptors()
	code := m.Run()
	if code == 0 {
		if left := leftovers(descriptors); left != "" {
			fmt.Fprintln(os.Stderr, left)
			code = 1
		}
	}
	os.Exit(code)
}

// leftovers says what outlives the tests, after it had time to end.
func leftovers(descriptors int) string {
	var report string
	for range 100 {
		report = ""
		if n := openDescriptors(); n > descriptors {
			report = fmt.Sprintf("leak: %d descriptors, %d before the tests", n, descriptors)
		}
		if stacks := ownGoroutines(); stacks != "" {
			report += "\nleak: goroutines:\n" + stacks
		}
		if report == "" {
			return ""
		}
		time.Sleep(10 * time.Millisecond)
	}
	return report
}

// startPoller makes the runtime open the descriptors of its poller, which it
// keeps.
func startPoller() {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	r.Close()
	w.Close()
}

// openDescriptors counts the descriptors of this process.
func openDescriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}

// ownGoroutines returns the stacks of the goroutines that this module's code
// started.
func ownGoroutines() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var own []string
	for _, stack := range strings.Split(string(buf), "\n\n")[1:] {
		if strings.Contains(stack, "created by github.com/seed-b9b531af/ramjet/") {
			own = append(own, stack)
		}
	}
	return strings.Join(own, "\n\n")
}
