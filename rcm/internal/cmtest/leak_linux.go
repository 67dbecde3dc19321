package cmtest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Main turns the test binary into a peer process when a test started it
// as one, and otherwise fails if the tests leave goroutines or descriptors.
func Main(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	startPoller()
	descriptors := OpenDescriptors()
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
		if n := OpenDescriptors(); n > descriptors {
			report = fmt.Sprintf("leak: %d descriptors, %d before the tests", n, descriptors)
		}
		if stacks := OwnGoroutines(); stacks != "" {
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

// OpenDescriptors counts the descriptors of this process.
func OpenDescriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}

// OwnGoroutines returns the stacks of the goroutines that this module's code
// started.
func OwnGoroutines() string {
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
