//go:build linux

package soft

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// resources is what a test must not leave behind.
type resources struct {
	goroutines, descriptors int
	mappings                int // of memfds and of the places that they leave
	mapped                  string
}

func countResources() resources {
	runtime.GC()
	r := resources{goroutines: runtime.NumGoroutine()}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		r.descriptors = len(fds)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return r
	}
	for line := range bytes.Lines(maps) {
		f := strings.Fields(string(line))
		shared := strings.Contains(string(line), "/memfd:ramjet")
		showZeros := len(f) == 5 && f[1] == "r--p"
		if shared || showZeros {
			r.mappings++
			r.mapped += string(line)
		}
	}
	return r
}

// CheckLeaks compares with the beginning when the test ends. What goes away in
// the background has some time for it.
func CheckLeaks(t testing.TB) {
	t.Helper()
	// The runtime's poller has descriptors of its own, from its first use on.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := countResources()
	t.Cleanup(func() {
		var now resources
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			now = countResources()
			if now.goroutines <= before.goroutines && now.descriptors <= before.descriptors && now.mappings <= before.mappings {
				return
			}
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		t.Errorf("left behind: %+v, before %+v\n%s\n%s", now, before, openFiles(), stacks)
	})
}

func openFiles() string {
	var b strings.Builder
	fds, _ := os.ReadDir("/proc/self/fd") // for the eyes of a reader only
	for _, fd := range fds {
		target, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		fmt.Fprintf(&b, "%s -> %s\n", fd.Name(), target)
	}
	return b.String()
}
