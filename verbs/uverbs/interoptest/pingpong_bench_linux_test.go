package interoptest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

// pingPongEnv makes this program the server of a benchmark, which it holds.
const pingPongEnv = "PINGPONG_SERVER"

// benchmark is what both ends of a benchmark agree on.
type benchmark struct {
	pingpong.Game
	Procs int // GOMAXPROCS, 0: as it is
}

// servePingPong writes the port that it listens on to its standard output.
func servePingPong(conf string) error {
	var g benchmark
	if err := json.Unmarshal([]byte(conf), &g); err != nil {
		return err
	}
	runtime.GOMAXPROCS(g.Procs)
	p := &pingpong.End{Game: g.Game}
	if err := p.Prepare(pingpong.PathOf); err != nil {
		return err
	}
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	if err := p.Serve(ln); err != nil {
		return err
	}
	return p.Ctx.Close()
}

// BenchmarkPingPong times messages of 64 bytes to and fro between two
// processes, and beside it the same between two C programs. Each reports the
// time of a round trip. The C programs have one thread; "alone" are Go's with
// GOMAXPROCS=1, where the scheduler finds no other CPU to wake threads for.
func BenchmarkPingPong(b *testing.B) {
	device := cDevice(b)
	for _, mode := range []struct {
		name           string
		events, thread bool
	}{
		{"polling", false, false}, {"events", true, false}, {"thread", true, true},
	} {
		g := benchmark{Game: pingpong.Game{Device: device, Size: 64, Events: mode.events, Thread: mode.thread}}
		b.Run(mode.name+"/go", func(b *testing.B) { benchmarkGo(b, g) })
		g.Procs = 1
		b.Run(mode.name+"/go-alone", func(b *testing.B) { benchmarkGo(b, g) })
		if !mode.thread {
			b.Run(mode.name+"/c", func(b *testing.B) { benchmarkC(b, g.Game) })
		}
	}
}

func benchmarkGo(b *testing.B, g benchmark) {
	g.Rounds = b.N
	if g.Procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(g.Procs))
	}
	conf, err := json.Marshal(g)
	require.NoError(b, err)
	server := exec.CommandContext(b.Context(), os.Args[0])
	server.Env = append(os.Environ(), pingPongEnv+"="+string(conf))
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, server.Start())
	addr, err := bufio.NewReader(out).ReadString('\n') // ends with the line, or with the process
	require.NoError(b, err)
	p := &pingpong.End{Game: g.Game}
	require.NoError(b, p.Prepare(pingpong.PathOf))
	require.NoError(b, p.Dial(addr[:len(addr)-1]))
	b.ReportMetric(float64(p.Elapsed.Microseconds())/float64(g.Rounds), "us/round-trip")
	b.ReportMetric(0, "ns/op") // it includes the making of everything
	_, _ = io.Copy(io.Discard, out)
	require.NoError(b, server.Wait())
	require.NoError(b, p.Ctx.Close())
}

var usecPerIter = regexp.MustCompile(`= ([0-9.]+) usec/iter`)

func benchmarkC(b *testing.B, g pingpong.Game) {
	ctx, err := verbs.Open(g.Device)
	require.NoError(b, err)
	path, err := pingpong.PathOf(ctx)
	require.NoError(b, err)
	require.NoError(b, ctx.Close())
	number, port := freePort(b)
	args := append(gidFlag(path, "-g"), "-d", g.Device, "-n", strconv.Itoa(b.N), "-s", strconv.Itoa(g.Size), "-p", port)
	if g.Events {
		args = append(args, "-e")
	}
	server := program(b, "ibv_rc_pingpong", args...)
	waitForListener(b, number)
	out, err := program(b, "ibv_rc_pingpong", append(args, "127.0.0.1")...)()
	require.NoError(b, err)
	_, err = server()
	require.NoError(b, err)
	m := usecPerIter.FindStringSubmatch(out)
	require.NotNil(b, m, "%s", out)
	usec, err := strconv.ParseFloat(m[1], 64)
	require.NoError(b, err)
	b.ReportMetric(usec, "us/round-trip")
	b.ReportMetric(0, "ns/op")
}
