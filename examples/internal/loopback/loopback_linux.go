package loopback

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// aloneVariable tells a test process that the network namespace is its own.
const aloneVariable = "RAMJET_TEST_ALONE"

// Alone reports whether the test runs in a network namespace that nobody else
// uses. If not, it has run the test once more in one, and t has the result: all
// that is left to do is to return.
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneVariable) != "" {
		require.NoError(t, raise())
		return true
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.run", pattern(t.Name()))
	cmd.Env = append(os.Environ(), aloneVariable+"=1")
	cmd.SysProcAttr = ownNamespace()
	runtime.LockOSThread() // see Pdeathsig in prctl(2)
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput() // ended by the test's own time limits, or our death

	// An emulator of a process says EINVAL.
	if os.IsPermission(err) || errors.Is(err, syscall.EINVAL) {
		skip.Because(t, fmt.Errorf("no network namespace of its own can be had: %w", err))
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// pattern matches the test of this name, and nothing else.
func pattern(name string) string {
	return "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
}

// ownNamespace makes a process start in a network namespace of its own, as the
// user that it is. Others than root need a user namespace for it.
func ownNamespace() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
	}
	return attr
}

// raise brings the namespace's loopback interface up; it is born down.
func raise() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}

// Bytes returns how many bytes went over the loopback interface so far, with
// the headers of the packets.
func Bytes(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/dev")
	require.NoError(t, err)
	_, line, found := strings.Cut(string(text), "lo:")
	require.True(t, found, "%s", text)
	// bytes received, which were sent too
	n, err := strconv.ParseInt(strings.Fields(line)[0], 10, 64)
	require.NoError(t, err)
	return n
}

// Compare makes an exchange over TCP and over shared memory, once each. The
// exchange returns how many bytes it moves at least: over TCP more than those
// have to go over the loopback interface, over shared memory none at all.
func Compare(t *testing.T, exchange func(t *testing.T, over rnet.Transport) (least int64)) {
	t.Helper()
	for _, over := range []rnet.Transport{rnet.TCP, rnet.Soft} {
		t.Run("over "+string(over), func(t *testing.T) {
			begin := Bytes(t)
			least := exchange(t, over)
			counted := Bytes(t) - begin
			if over == rnet.TCP {
				require.Greater(t, counted, least)
			} else {
				require.Zero(t, counted)
			}
		})
	}
}
