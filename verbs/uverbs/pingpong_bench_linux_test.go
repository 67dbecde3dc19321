package uverbs_test

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

	"github.com/stretchr/testify/require"
)

// pingPongEnv makes this program the server of a benchmark, of which it holds
// the pingPong.
const pingPongEnv = "PINGPONG_SERVER"

// game is what both ends of a benchmark agree on.
type game struct {
	Size, Rounds   int
	Events, Thread bool
	Procs          int // GOMAXPROCS, 0: as it is
}

func (g game) pingPong() *pingPong {
	return &pingPong{device: "rxe0", size: g.Size, rounds: g.Rounds, events: g.Events, thread: g.Thread}
}

// servePingPong writes the port that it listens on to its standard output.
func servePingPong(conf string) error {
	var g game
	if err := json.Unmarshal([]byte(conf), &g); err != nil {
		return err
	}
	runtime.GOMAXPROCS(g.Procs)
	p := g.pingPong()
	if err := p.prepare(pathOf); err != nil {
		return err
	}
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	if err := p.serve(ln); err != nil {
		return err
	}
	return p.ctx.Close()
}

// BenchmarkPingPong times messages of 64 bytes to and fro between two
// processes, and beside it the same between two C programs. Each reports the
// time of a round trip. The C programs have one thread; "alone" are Go's with
// GOMAXPROCS=1, where the scheduler finds no other CPU to wake threads for.
func BenchmarkPingPong(b *testing.B) {
	requireDevice(b, "rxe0")
	for _, mode := range []struct {
		name string
		game game
	}{
		{"polling", game{}}, {"events", game{Events: true}}, {"thread", game{Events: true, Thread: true}},
	} {
		g := mode.game
		g.Size = 64
		b.Run(mode.name+"/go", func(b *testing.B) { benchmarkGo(b, g) })
		g.Procs = 1
		b.Run(mode.name+"/go-alone", func(b *testing.B) { benchmarkGo(b, g) })
		if !mode.game.Thread {
			b.Run(mode.name+"/c", func(b *testing.B) { benchmarkC(b, 64, mode.game.Events) })
		}
	}
}

func benchmarkGo(b *testing.B, g game) {
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
	p := g.pingPong()
	require.NoError(b, p.prepare(pathOf))
	require.NoError(b, p.dial(addr[:len(addr)-1]))
	b.ReportMetric(float64(p.elapsed.Microseconds())/float64(g.Rounds), "us/round-trip")
	b.ReportMetric(0, "ns/op") // it includes the making of everything
	_, _ = io.Copy(io.Discard, out)
	require.NoError(b, server.Wait())
	require.NoError(b, p.ctx.Close())
}

var usecPerIter = regexp.MustCompile(`= ([0-9.]+) usec/iter`)

func benchmarkC(b *testing.B, size int, events bool) {
	number, port := freePort(b)
	args := []string{"-d", "rxe0", "-g", "1", "-n", strconv.Itoa(b.N), "-s", strconv.Itoa(size), "-p", port}
	if events {
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
