package interoptest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

const needsDevices = "needs RDMA devices: go build -o /tmp/guest ./verbs/guest && go test -exec /tmp/guest ./verbs/uverbs/interoptest"

// cDevice is the first device of RAMJET_DEVICES that is not iWARP, which these C programs do
// not know. Without one the test is skipped.
func cDevice(t testing.TB) string {
	t.Helper()
	devices := testhost.Devices()
	if len(devices) == 0 {
		t.Skip(needsDevices)
	}
	known, err := verbs.Devices()
	require.NoError(t, err)
	for _, d := range devices {
		iWARP := func(info verbs.DeviceInfo) bool { return info.Name == d.Name && info.Transport == verbs.TransportIWARP }
		if !slices.ContainsFunc(known, iWARP) {
			return d.Name
		}
	}
	t.Skipf("there is no RDMA device but iWARP among %+v", devices)
	return ""
}

// gidFlag is what a C program is told that takes the row of the GID by a flag of that name.
func gidFlag(p pingpong.Path, name string) []string {
	if !p.Global {
		return nil
	}
	return []string{name, strconv.Itoa(p.GID.Index)}
}

// program starts a C program, whose output shows if the test fails. It ends
// with the test at the latest.
func program(t testing.TB, name string, args ...string) (wait func() (string, error)) {
	t.Helper()
	_, wait = process(t, name, args...)
	return wait
}

// process is program for who wants to know its number.
func process(t testing.TB, name string, args ...string) (pid int, wait func() (string, error)) {
	t.Helper()
	path, err := exec.LookPath(name)
	require.NoError(t, err, "the guest has it")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	wait = sync.OnceValues(func() (string, error) {
		err := cmd.Wait() // ends with the program, which the context kills after a minute
		if err != nil {
			err = fmt.Errorf("%s %v: %w", name, args, err)
		}
		return out.String(), err
	})
	t.Cleanup(func() {
		cancel()
		if text, err := wait(); t.Failed() { // ends at once: the context has killed it
			t.Logf("%s %v ended with %v:\n%s", name, args, err, text)
		}
	})
	return cmd.Process.Pid, wait
}

// waitForListener returns when a program listens on a TCP port of this host.
// It looks at the table of sockets: a connection would be taken for a peer.
func waitForListener(t testing.TB, port int) {
	t.Helper()
	want := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	require.Eventually(t, func() bool {
		for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			if table, err := os.ReadFile(file); err == nil && want.Match(table) {
				return true
			}
		}
		return false
	}, 20*time.Second, 5*time.Millisecond, "nobody listens on port %d", port)
}

func freePort(t testing.TB) (int, string) {
	t.Helper()
	addr, err := freeport.Address("127.0.0.1")
	require.NoError(t, err)
	port := netip.MustParseAddrPort(addr).Port()
	return int(port), strconv.Itoa(int(port))
}

func TestPingPongWithTheCProgram(t *testing.T) {
	device := cDevice(t)
	for _, mode := range []struct {
		name           string
		events, thread bool
	}{{"polling", false, false}, {"events", true, false}, {"events of a thread", true, true}} {
		for size, rounds := range map[int]int{1: 300, 4096: 300, 100_000: 50} {
			t.Run(fmt.Sprintf("%s, %d bytes", mode.name, size), func(t *testing.T) {
				playWithC(t, pingpong.PathOf, "ibv_rc_pingpong", pingpong.Game{
					Device: device, Size: size, Rounds: rounds, Events: mode.events, Thread: mode.thread,
				})
			})
		}
	}
}

// The other services, and QPs that share their receives.
func TestPingPongWithTheCProgramsOfOtherServices(t *testing.T) {
	device := cDevice(t)
	const rounds = 100
	for _, game := range []struct {
		name    string
		program string
		path    func(*verbs.Context) (pingpong.Path, error)
		pingpong.Game
	}{
		{"UC", "ibv_uc_pingpong", pingpong.PathOf, pingpong.Game{Service: verbs.QPTypeUC, Size: 1}},
		{"UC", "ibv_uc_pingpong", pingpong.PathOf, pingpong.Game{Service: verbs.QPTypeUC, Size: 5000}},
		{"UD", "ibv_ud_pingpong", pingpong.PathOf, pingpong.Game{Service: verbs.QPTypeUD, Size: 1}},
		{"UD", "ibv_ud_pingpong", pingpong.PathOf, pingpong.Game{Service: verbs.QPTypeUD, Size: 1024}},
		{"UD by GID", "ibv_ud_pingpong", pingpong.PathByGID, pingpong.Game{Service: verbs.QPTypeUD, Size: 1000}},
		{"RC by GID", "ibv_rc_pingpong", pingpong.PathByGID, pingpong.Game{Size: 1000}},
		{"SRQ of a QP", "ibv_srq_pingpong", pingpong.PathOf, pingpong.Game{Shared: 1, Size: 3000}},
		{"SRQ of 16 QPs", "ibv_srq_pingpong", pingpong.PathOf, pingpong.Game{Shared: 16, Size: 64}},
		{"SRQ of 5 QPs by GID", "ibv_srq_pingpong", pingpong.PathByGID, pingpong.Game{Shared: 5, Size: 5000}},
	} {
		for _, events := range []bool{false, true} {
			game.Device, game.Rounds, game.Events = device, rounds, events
			t.Run(fmt.Sprintf("%s, events %t, %d bytes", game.name, events, game.Size), func(t *testing.T) {
				playWithC(t, game.path, game.program, game.Game)
			})
		}
	}
}

// playWithC plays a game with a C program, once as its client and once as its server.
func playWithC(t *testing.T, pathOf func(*verbs.Context) (pingpong.Path, error), name string, game pingpong.Game) {
	prepare := func(t *testing.T) (p *pingpong.End, args []string) {
		p = &pingpong.End{Game: game}
		p.Echo = true
		require.NoError(t, p.Prepare(pathOf))
		t.Cleanup(func() { require.NoError(t, p.Ctx.Close()) })
		args = append(gidFlag(p.Path, "-g"), "-d", p.Device, "-n", strconv.Itoa(p.Rounds), "-s", strconv.Itoa(p.Size))
		if p.Events {
			args = append(args, "-e")
		}
		if p.Shared > 0 {
			args = append(args, "-q", strconv.Itoa(p.Shared))
		}
		return p, args
	}
	iterations := strconv.Itoa(game.Rounds) + " iters"
	t.Run("C serves", func(t *testing.T) {
		p, args := prepare(t)
		number, port := freePort(t)
		wait := program(t, name, append(args, "-p", port)...)
		waitForListener(t, number)
		require.NoError(t, p.Dial("127.0.0.1:"+port))
		out, err := wait()
		require.NoError(t, err)
		require.Contains(t, out, iterations)
	})
	t.Run("C dials", func(t *testing.T) {
		p, args := prepare(t)
		ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		defer ln.Close()
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		wait := program(t, name, append(args, "-p", port, "127.0.0.1")...)
		require.NoError(t, p.Serve(ln))
		out, err := wait()
		require.NoError(t, err)
		require.Contains(t, out, iterations)
	})
}
