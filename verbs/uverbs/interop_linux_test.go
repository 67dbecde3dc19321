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

// cDevice is the device with which the C programs run here. Without one the test is skipped.
func cDevice(t testing.TB) string {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("RAMJET_DEVICES"), ","), "mlx5_0") {
		return "mlx5_0"
	}
	requireDevice(t, "rxe0")
	return "rxe0"
}

// A path is how we and C programs on a device reach each other: by a row of its table of GIDs, or
// by the LID.
type path struct {
	global bool
	lid    uint16         // 0 on Ethernet
	gid    verbs.GIDEntry // if global
}

// to is the way to a peer.
func (p path) to(lid uint16, gid verbs.GID) verbs.AddressVector {
	av := verbs.AddressVector{DLID: lid, Port: 1}
	if p.global {
		av.IsGlobal, av.DGID, av.SGIDIndex, av.HopLimit = true, gid, uint8(p.gid.Index), 1
	}
	return av
}

// flag is what a C program is told that takes the row by a flag of that name.
func (p path) flag(name string) []string {
	if !p.global {
		return nil
	}
	return []string{name, strconv.Itoa(p.gid.Index)}
}

// pathOf is the path by LID on InfiniBand, and otherwise by the GID of the host's IPv4 address.
func pathOf(ctx *verbs.Context) (path, error) {
	port, err := ctx.QueryPort(1)
	if err != nil {
		return path{}, err
	}
	if port.LID != 0 {
		return path{lid: port.LID}, nil
	}
	return byAddress(roceHosts[ctx.Name()])(ctx)
}

// byGID is the path by GID on InfiniBand too.
func byGID(ctx *verbs.Context) (path, error) {
	p, err := pathOf(ctx)
	if err != nil || p.global {
		return p, err
	}
	gids, err := ctx.QueryGIDs(1)
	if err != nil {
		return path{}, err
	}
	p.global, p.gid = true, gids[0]
	return p, nil
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
				playWithC(t, pathOf, "ibv_rc_pingpong", pingPong{
					device: device, size: size, rounds: rounds, events: mode.events, thread: mode.thread,
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
		path    func(*verbs.Context) (path, error)
		pingPong
	}{
		{"UC", "ibv_uc_pingpong", pathOf, pingPong{service: verbs.QPTypeUC, size: 1}},
		{"UC", "ibv_uc_pingpong", pathOf, pingPong{service: verbs.QPTypeUC, size: 5000}},
		{"UD", "ibv_ud_pingpong", pathOf, pingPong{service: verbs.QPTypeUD, size: 1}},
		{"UD", "ibv_ud_pingpong", pathOf, pingPong{service: verbs.QPTypeUD, size: 1024}},
		{"UD by GID", "ibv_ud_pingpong", byGID, pingPong{service: verbs.QPTypeUD, size: 1000}},
		{"RC by GID", "ibv_rc_pingpong", byGID, pingPong{size: 1000}},
		{"SRQ of a QP", "ibv_srq_pingpong", pathOf, pingPong{shared: 1, size: 3000}},
		{"SRQ of 16 QPs", "ibv_srq_pingpong", pathOf, pingPong{shared: 16, size: 64}},
		{"SRQ of 5 QPs by GID", "ibv_srq_pingpong", byGID, pingPong{shared: 5, size: 5000}},
	} {
		for _, events := range []bool{false, true} {
			game.device, game.rounds, game.events = device, rounds, events
			t.Run(fmt.Sprintf("%s, events %t, %d bytes", game.name, events, game.size), func(t *testing.T) {
				playWithC(t, game.path, game.program, game.pingPong)
			})
		}
	}
}

// playWithC plays a game with a C program, once as its client and once as its server.
func playWithC(t *testing.T, pathOf func(*verbs.Context) (path, error), name string, game pingPong) {
	prepare := func(t *testing.T) (p *pingPong, args []string) {
		own := game
		p = &own
		p.echo = true
		require.NoError(t, p.prepare(pathOf))
		t.Cleanup(func() { require.NoError(t, p.ctx.Close()) })
		args = append(p.path.flag("-g"), "-d", p.device, "-n", strconv.Itoa(p.rounds), "-s", strconv.Itoa(p.size))
		if p.events {
			args = append(args, "-e")
		}
		if p.shared > 0 {
			args = append(args, "-q", strconv.Itoa(p.shared))
		}
		return p, args
	}
	iterations := strconv.Itoa(game.rounds) + " iters"
	t.Run("C serves", func(t *testing.T) {
		p, args := prepare(t)
		number, port := freePort(t)
		wait := program(t, name, append(args, "-p", port)...)
		waitForListener(t, number)
		require.NoError(t, p.dial("127.0.0.1:"+port))
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
		require.NoError(t, p.serve(ln))
		out, err := wait()
		require.NoError(t, err)
		require.Contains(t, out, iterations)
	})
}
