package leak

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// settleTime is how long what goes idle by itself has to end.
const settleTime = 20 * time.Second

// MainOnceIdle is Main for packages in which what was used goes idle and ends by itself: it
// waits for that. It counts no goroutines of tests. Others are the beginnings of functions
// outside of this module whose goroutines count too.
func MainOnceIdle(m *testing.M, others ...string) {
	startPoller()
	before := Count(others...)
	code := m.Run()
	if code == 0 {
		if left := before.Leftovers(); left != "" {
			fmt.Fprintln(os.Stderr, "leak:", left)
			code = 1
		}
	}
	os.Exit(code)
}

// Check fails t if what follows leaves something behind once it has gone idle.
func Check(t testing.TB) {
	t.Helper()
	before := Count()
	t.Cleanup(func() {
		if left := before.Leftovers(); left != "" {
			t.Error("left behind:", left)
		} else if !t.Skipped() { // what a skipped test logs last is its reason
			t.Log(before.counted())
		}
	})
}

// counted says what there is more than when r was counted, in the form that .ci/run adds up.
func (r Resources) counted() string {
	now := Count(r.others...)
	descriptors := 0
	for target, n := range now.descriptors {
		descriptors += max(0, n-r.descriptors[target])
	}
	return fmt.Sprintf("left behind: %d descriptors, %d mappings, %d pinned bytes, %d goroutines",
		descriptors, max(0, now.mappings-r.mappings), max(0, now.pinned-r.pinned), max(0, now.goroutines-r.goroutines))
}

// Resources are what a process has at a moment.
type Resources struct {
	descriptors map[string]int // by what they are
	mappings    int            // of shared memory
	pinned      int64          // bytes of registered memory
	goroutines  int            // as ProductionGoroutines tells
	others      []string
}

// Count counts now. What the system does not tell (anywhere but on Linux) counts as nothing.
func Count(others ...string) Resources {
	r := Resources{
		descriptors: make(map[string]int), pinned: verbs.PinnedBytes(),
		goroutines: len(ProductionGoroutines(others...)), others: others,
	}
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil { // not the one that ReadDir used
			r.descriptors[strings.TrimRight(target, "0123456789[]")]++
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	r.mappings = strings.Count(string(maps), "/memfd:")
	return r
}

// Leftovers says what there is more than when r was counted, after what is under way had
// time to end; empty if nothing.
func (r Resources) Leftovers() string {
	var now Resources
	for end := time.Now().Add(settleTime); ; time.Sleep(10 * time.Millisecond) {
		if now = Count(r.others...); !now.exceeds(r) {
			return ""
		}
		if time.Now().After(end) {
			break
		}
	}
	text := fmt.Sprintf("%+v, before %+v\n%s", now, r, sockets())
	if now.goroutines > r.goroutines {
		text += strings.Join(ProductionGoroutines(r.others...), "\n\n")
	}
	return text
}

func (r Resources) exceeds(before Resources) bool {
	for target, n := range r.descriptors {
		if n > before.descriptors[target] {
			return true
		}
	}
	return r.mappings > before.mappings || r.pinned > before.pinned || r.goroutines > before.goroutines
}

// sockets returns the kernel's lines about the sockets of this process.
func sockets() string {
	var own strings.Builder
	for _, table := range []string{"unix", "tcp", "tcp6"} {
		lines, _ := os.ReadFile("/proc/self/net/" + table)
		list, _ := os.ReadDir("/proc/self/fd")
		for _, e := range list {
			target, _ := os.Readlink("/proc/self/fd/" + e.Name())
			inode, isSocket := strings.CutPrefix(target, "socket:[")
			if !isSocket {
				continue
			}
			for line := range strings.Lines(string(lines)) {
				if slices.Contains(strings.Fields(line), strings.TrimSuffix(inode, "]")) {
					fmt.Fprintf(&own, "descriptor %s: %s %s", e.Name(), table, line)
				}
			}
		}
	}
	return own.String()
}
