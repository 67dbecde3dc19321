// Package leak tells tests, on Linux, what they have left behind.
package leak

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Main is what TestMain has to do: it runs the tests and ends the process, as
// failed if they leave goroutines, descriptors or pinned bytes.
func Main(m *testing.M) {
	startPoller()
	before := Descriptors()
	code := m.Run()
	var left string
	for range 100 {
		if left = leftovers(before); left == "" {
			break
		}
		time.Sleep(10 * time.Millisecond) // goroutines that were told to end do so
	}
	if code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, left)
		code = 1
	}
	os.Exit(code)
}

func leftovers(before int) string {
	var left []string
	if n := Descriptors(); n > before {
		left = append(left, fmt.Sprintf("leak: %d descriptors, %d before the tests", n, before))
	}
	if n := verbs.PinnedBytes(); n != 0 {
		left = append(left, fmt.Sprintf("leak: %d pinned bytes", n))
	}
	for _, stack := range Goroutines() {
		left = append(left, "leak: "+stack)
	}
	return strings.Join(left, "\n")
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

// Descriptors counts the descriptors of this process.
func Descriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}

// Goroutines returns the stacks of the goroutines that code of this module has
// started, that of tests included, but of the one that calls.
func Goroutines() []string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var own []string
	for _, stack := range strings.Split(string(buf), "\n\n")[1:] {
		if strings.Contains(stack, "created by github.com/seed-b9b531af/ramjet/") {
			own = append(own, stack)
		}
	}
	return own
}
