package kerneltest

import (
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"golang.org/x/sys/unix"
)

// kernelResources is what the kernel counts of the devices' use.
type kernelResources struct {
	resources string // PDs, CQs, QPs and so on of each device, of all processes
	pinned    uint64 // bytes that devices have pinned of this process
	locked    uint64 // bytes that it has locked itself
}

func countKernelResources(t testing.TB) kernelResources {
	t.Helper()
	limits, err := rdmahost.ReadLimits()
	require.NoError(t, err)
	if testhost.IsModel() {
		return kernelResources{} // it tells neither
	}
	var resources []string
	for line := range strings.Lines(run(t, "rdma", "resource")) {
		// a device that was removed has another index when it is back
		_, rest, _ := strings.Cut(line, ": ")
		resources = append(resources, strings.TrimSpace(rest))
	}
	slices.Sort(resources)
	return kernelResources{strings.Join(resources, "; "), limits.Memlock.Pinned, limits.Memlock.Locked}
}

// leavesDevicesAlone is leavesNothing, and looks at what the kernel counts
// too.
func leavesDevicesAlone(t testing.TB) {
	t.Helper()
	leak.Check(t)
	before := countKernelResources(t)
	t.Cleanup(func() {
		var now kernelResources
		for end := time.Now().Add(hang.Time); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if now = countKernelResources(t); now == before {
				return
			}
		}
		t.Errorf("left in the kernel: %+v, before %+v", now, before)
	})
}

// failureTime is how long the documentation gives a session to find out that
// its peer cannot be reached: a probe goes out after a link.KeepAlivePeriod at most,
// and is given up a period later.
const failureTime = 2 * link.KeepAlivePeriod

// More times that the documentation gives.
const (
	headStart = 200 * time.Millisecond // of a dial's way over a device, before it takes TCP
	setUpTime = 10 * time.Second       // of a session
)

// The tests of times that the documentation states allow the guest to be slow:
// they are no measure of speed.
const (
	atOnce   = 2 * time.Second // what is documented to need no time
	slowness = 5 * time.Second // beside a time that is documented
)

// awaitFailure waits until f returns, which a session's failure ends. It fails
// t if that takes longer than documented.
func awaitFailure(t testing.TB, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	begun := time.Now()
	select {
	case <-done:
		require.Less(t, time.Since(begun), failureTime+slowness)
	case <-time.After(3 * failureTime):
		buf := make([]byte, 1<<20)
		t.Fatalf("the failure was not noticed\n%s", buf[:runtime.Stack(buf, true)])
	}
}

// acceptTime is how long a test waits for a connection that is sure to come.
const acceptTime = time.Minute

// acceptOne returns the next connection of ln. It waits for a peer's dial, for
// acceptTime at most: if the peer has failed, the test does not hang.
func acceptOne(t testing.TB, ln net.Listener) net.Conn {
	t.Helper()
	limited := ln.(interface{ SetDeadline(time.Time) error })
	require.NoError(t, limited.SetDeadline(time.Now().Add(acceptTime)))
	c, err := ln.Accept() // ended by a peer, or the deadline
	require.NoError(t, err)
	require.NoError(t, limited.SetDeadline(time.Time{}))
	t.Cleanup(func() { c.Close() })
	return c
}

// onKernel reports whether the guest's kernel is of a series, "6.1".
func onKernel(t testing.TB, series string) bool {
	t.Helper()
	var name unix.Utsname
	require.NoError(t, unix.Uname(&name))
	return strings.HasPrefix(unix.ByteSliceToString(name.Release[:]), series+".")
}

// run runs a program of the guest and returns what it prints.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// alsoEnv gives a child variables beside those that it inherits.
func alsoEnv(vars ...string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, vars...) }
}
