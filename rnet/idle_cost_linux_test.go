package rnet

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// cost is what a process has of the system: memory, of shared pages its part, and
// descriptors.
type cost struct{ bytes, descriptors int }

func costOf(t testing.TB, pid int) (c cost) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int
		if rest, ok := strings.CutPrefix(lines.Text(), "Pss:"); ok {
			_, err = fmt.Sscan(rest, &kib)
			require.NoError(t, err)
			c.bytes = kib << 10
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	c.descriptors = len(fds)
	return c
}

// What an idle session may take: of memory both sides together, of descriptors each.
const (
	maxIdleSession     = 128 << 10
	maxIdleDescriptors = 3
)

func TestIdleSessionCostsLittle(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector has memory of its own for each page")
	}
	const sessions = 100
	child := roles.Start(t, "target", "soft")
	address := child.Line(t)
	d := &Dialer{Transport: Soft, Dedicated: true}
	open := func() net.Conn {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Write([]byte{traffic.Echo, 'x'})
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
		return c
	}
	open()
	pids := []int{os.Getpid(), child.Cmd.Process.Pid}
	before := []cost{costOf(t, pids[0]), costOf(t, pids[1])}
	for range sessions {
		open()
	}
	both := 0
	for i, pid := range pids {
		after := costOf(t, pid)
		// What the peer has got is closed by the goroutine that has
		// paired, in its own time.
		for deadline := time.Now().Add(10 * time.Second); after.descriptors-before[i].descriptors > maxIdleDescriptors*sessions && time.Now().Before(deadline); after = costOf(t, pid) {
			time.Sleep(5 * time.Millisecond)
		}
		bytes, fds := after.bytes-before[i].bytes, after.descriptors-before[i].descriptors
		t.Logf("side %d: %d KiB and %.1f descriptors for a session", i, bytes/sessions>>10, float64(fds)/sessions)
		both += bytes
		require.LessOrEqual(t, fds, maxIdleDescriptors*sessions)
	}
	require.Less(t, both/sessions, maxIdleSession)
}
