package uverbs_test

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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// roceHosts are the addresses of the RoCE devices that run with the C programs: rxe in the
// virtual machine, a ConnectX on a host of the model.
var roceHosts = map[string]string{"rxe0": "10.0.0.1", "mlx5_0": "10.77.0.1"}

// roceDevice is the one that is here. Without one the test is skipped.
func roceDevice(t testing.TB) string {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("RAMJET_DEVICES"), ","), "mlx5_0") {
		return "mlx5_0"
	}
	requireDevice(t, "rxe0")
	return "rxe0"
}

// roceGID finds the row of the host's IPv4 address.
func roceGID(ctx *verbs.Context) (verbs.GIDEntry, error) {
	gids, err := ctx.QueryGIDs(1)
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	host := roceHosts[ctx.Name()]
	for _, g := range gids {
		if g.Type == verbs.GIDTypeRoCEv2 && g.GID.String() == "::ffff:"+host {
			return g, nil
		}
	}
	return verbs.GIDEntry{}, fmt.Errorf("no RoCE v2 GID of %s", host)
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
	device := roceDevice(t)
	for _, mode := range []struct {
		name           string
		events, thread bool
	}{{"polling", false, false}, {"events", true, false}, {"events of a thread", true, true}} {
		for size, rounds := range map[int]int{1: 300, 4096: 300, 100_000: 50} {
			args := []string{"-d", device, "-n", strconv.Itoa(rounds), "-s", strconv.Itoa(size), "-g"}
			cArgs := func(args []string, p *pingPong, more ...string) []string {
				args = append(slices.Clone(args), strconv.Itoa(p.gid.Index))
				if mode.events {
					args = append(args, "-e")
				}
				return append(args, more...)
			}
			newGame := func(t *testing.T) *pingPong {
				p := &pingPong{device: device, size: size, rounds: rounds, events: mode.events, thread: mode.thread}
				require.NoError(t, p.prepare(roceGID))
				t.Cleanup(func() { require.NoError(t, p.ctx.Close()) })
				return p
			}
			t.Run(fmt.Sprintf("%s, %d bytes, C serves", mode.name, size), func(t *testing.T) {
				p := newGame(t)
				number, port := freePort(t)
				wait := program(t, "ibv_rc_pingpong", cArgs(args, p, "-p", port)...)
				waitForListener(t, number)
				require.NoError(t, p.dial("127.0.0.1:"+port))
				out, err := wait()
				require.NoError(t, err)
				require.Contains(t, out, strconv.Itoa(rounds)+" iters")
			})
			t.Run(fmt.Sprintf("%s, %d bytes, C dials", mode.name, size), func(t *testing.T) {
				p := newGame(t)
				ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
				require.NoError(t, err)
				defer ln.Close()
				_, port, err := net.SplitHostPort(ln.Addr().String())
				require.NoError(t, err)
				wait := program(t, "ibv_rc_pingpong", cArgs(args, p, "-p", port, "127.0.0.1")...)
				require.NoError(t, p.serve(ln))
				out, err := wait()
				require.NoError(t, err)
				require.Contains(t, out, strconv.Itoa(rounds)+" iters")
			})
		}
	}
}
