package rgnet

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// TestMain turns the test binary into a peer process when a test started it
// as one, and otherwise fails if the tests leave something behind.
func TestMain(m *testing.M) {
	roles.Play()
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

// resources counts what the package may leave behind.
type resources struct {
	descriptors map[string]int // by what they are
	pinned      int64          // bytes of registered memory
	goroutines  int            // of this module, and of gnet's engines
}

func countResources() resources {
	c := resources{descriptors: make(map[string]int), pinned: verbs.PinnedBytes(), goroutines: len(ownGoroutines())}
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil { // not the one that ReadDir used
			c.descriptors[strings.TrimRight(target, "0123456789[]")]++
		}
	}
	return c
}

// leftovers says what there is more than when they were counted, after what is under
// way had time to end; empty if nothing.
func (c resources) leftovers() string {
	var now resources
	for end := time.Now().Add(patience); ; {
		now = countResources()
		if !now.exceeds(c) {
			return ""
		}
		if time.Now().After(end) {
			return fmt.Sprintf("%+v, before %+v\n%s%s", now, c, ownSockets(), strings.Join(ownGoroutines(), "\n\n"))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (c resources) exceeds(before resources) bool {
	for target, n := range c.descriptors {
		if n > before.descriptors[target] {
			return true
		}
	}
	return c.pinned > before.pinned || c.goroutines > before.goroutines
}

// ownSockets returns the kernel's lines about the sockets of this process.
func ownSockets() string {
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

// ownGoroutines returns the stacks of the goroutines that this module's code
// started, tests excepted, and those of gnet's engines (its pool of workers stays).
func ownGoroutines() []string { return leak.ProductionGoroutines("golang.org/x/sync/errgroup") }
