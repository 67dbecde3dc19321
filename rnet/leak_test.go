package rnet

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// resources counts what the package may leave behind.
type resources struct {
	descriptors int
	memfds      int   // descriptors of shared memory
	mappings    int   // mappings of shared memory
	pinned      int64 // bytes of registered memory
	goroutines  int   // of this module
}

// countResources counts now. What the system does not tell (anywhere but on Linux)
// counts as nothing.
func countResources() resources {
	c := resources{pinned: verbs.PinnedBytes(), goroutines: len(leak.ProductionGoroutines())}
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		switch {
		case err != nil: // the one that ReadDir used
		case strings.HasPrefix(target, "/memfd:"):
			c.memfds++
			c.descriptors++
		case target == "anon_inode:[eventpoll]": // the runtime's, made once and kept
		default:
			c.descriptors++
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	c.mappings = strings.Count(string(maps), "/memfd:")
	return c
}

// settleTime is how long sessions have to go idle and end.
const settleTime = 10 * time.Second

// leftovers says what there is more than when they were counted, after what is under
// way had time to end; empty if nothing.
func (c resources) leftovers() string {
	var now resources
	for end := time.Now().Add(settleTime); ; {
		if now = countResources(); !now.exceeds(c) {
			return ""
		}
		if time.Now().After(end) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	text := fmt.Sprintf("%+v, before %+v", now, c)
	if now.goroutines > c.goroutines {
		text += "\n" + strings.Join(leak.ProductionGoroutines(), "\n\n")
	}
	return text
}

func (c resources) exceeds(before resources) bool {
	return c.descriptors > before.descriptors || c.memfds > before.memfds || c.mappings > before.mappings ||
		c.pinned > before.pinned || c.goroutines > before.goroutines
}

// leavesNothing fails t if what follows leaves something behind.
func leavesNothing(t testing.TB) {
	t.Helper()
	before := countResources()
	t.Cleanup(func() {
		if left := before.leftovers(); left != "" {
			t.Error("left behind:", left)
		}
	})
}

// awaitNoSessions waits until those of earlier tests have ended, by going idle,
// and given back what they had.
func awaitNoSessions(t testing.TB) {
	t.Helper()
	eventually(t, "no session is left", func() bool {
		devices.mu.Lock()
		defer devices.mu.Unlock()
		return len(liveSessions.list()) == 0 && len(devices.open) == 0
	})
}
