// Package leak tells tests what they have left behind.
package leak

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// Main is what TestMain has to do on Linux: it runs the tests and ends the process, as
// failed if they leave goroutines, descriptors or pinned bytes.
func Main(m *testing.M) {
	startPoller()
	before := Descriptors()
	code := m.Run()
	if code != 0 {
		os.Exit(code)
	}
	left := leftovers(before)
	for end := time.Now().Add(hang.Time); left != "" && time.Now().Before(end); left = leftovers(before) {
		hang.Pause() // goroutines that were told to end do so
	}
	if left != "" {
		fmt.Fprintln(os.Stderr, left)
		os.Exit(1)
	}
	os.Exit(0)
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

const module = "github.com/seed-b9b531af/ramjet/"

// Goroutines returns the stacks of the goroutines that code of this module has
// started, that of tests included, but of the one that calls.
func Goroutines() []string {
	return startedBy(func(creator string) bool { return strings.HasPrefix(creator, module) })
}

// ProductionGoroutines is Goroutines without what tests have started, and with what
// functions have started whose names begin as one of others.
func ProductionGoroutines(others ...string) []string {
	return startedBy(func(creator string) bool {
		if strings.HasPrefix(creator, module) {
			return !strings.Contains(creator, "_test.go")
		}
		return slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(creator, other) })
	})
}

// startedBy returns the stacks of goroutines by who has started them: a function, and on the next line
// its file.
func startedBy(wanted func(creator string) bool) []string {
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	var own []string
	for _, stack := range strings.Split(string(buf[:n]), "\n\n")[1:] {
		if wanted(creatorOf(stack)) {
			own = append(own, strings.TrimSpace(stack))
		}
	}
	return own
}

// forOthers are functions of the standard library that start goroutines for their callers.
var forOthers = []string{"sync.(*WaitGroup).Go", "time.goFunc", "context."}

// creatorOf returns what stands behind "created by" in a stack. Where that is a function which does so for
// others, it is theirs that it has called there.
func creatorOf(stack string) string {
	calls, creator, _ := strings.Cut(stack, "\ncreated by ")
	lines := strings.Split(calls, "\n") // of each call two, the outermost is the last
	for i := len(lines) - 2; i > 0; i -= 2 {
		if !slices.ContainsFunc(forOthers, func(name string) bool { return strings.HasPrefix(creator, name) }) {
			break
		}
		creator = lines[i] + "\n" + lines[i+1]
	}
	return creator
}
