package verbsperf

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
)

// Without -rounds TestBesidePerftest shows that it works, by two tests in a short round; a table of
// all of them takes minutes:
//
//	go test -exec "guest -kernel 6.1 -devices rxe0" ./bench/verbsperf -run BesidePerftest -v \
//		-args -rounds 5 -iterations 300
var (
	rounds     = flag.Int("rounds", 0, "how often TestBesidePerftest measures each test; it shows medians")
	iterations = flag.Int("iterations", 50, "of each measurement of TestBesidePerftest")
	only       = flag.String("only", "", "`names` of the tests that TestBesidePerftest measures, with commas (default all)")
)

// cPrograms are perftest's, by our names, with the index of the figure that is compared behind the
// size and the iterations of its line, and our name of that.
var cPrograms = []struct {
	test    string
	program []string
	field   int
	column  string
}{
	{"send_lat", []string{"ib_send_lat"}, 2, "t_typical[usec]"},
	{"write_lat", []string{"ib_write_lat"}, 2, "t_typical[usec]"},
	{"read_lat", []string{"ib_read_lat"}, 2, "t_typical[usec]"},
	{"atomic_lat", []string{"ib_atomic_lat", "-A", "FETCH_AND_ADD"}, 2, "t_typical[usec]"},
	{"send_bw", []string{"ib_send_bw"}, 1, "BW average[MB/sec]"},
	{"write_bw", []string{"ib_write_bw"}, 1, "BW average[MB/sec]"},
	{"read_bw", []string{"ib_read_bw"}, 1, "BW average[MB/sec]"},
	{"atomic_bw", []string{"ib_atomic_bw", "-A", "FETCH_AND_ADD"}, 1, "BW average[MB/sec]"},
}

// Both programs measure alternately, on one device, and one table shows what they say.
func TestBesidePerftest(t *testing.T) {
	device := devices()[0]
	switch device {
	case "soft0":
		t.Skip("needs RDMA devices, see RAMJET_DEVICES")
	case "siw0":
		t.Skip("perftest connects iWARP in a way of its own")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Linux %s, medians of %d rounds of %d iterations\n\n", device, kernel(t), max(1, *rounds), *iterations)
	b.WriteString("| | bytes | perftest | `bench verbs` | |\n|---|---|---|---|---|\n")
	for _, c := range cPrograms {
		if *rounds == 0 && c.test != "send_lat" && c.test != "read_bw" || *only != "" && !slices.Contains(strings.Split(*only, ","), c.test) {
			continue
		}
		sizes := []int{64, 65536}
		if strings.HasPrefix(c.test, "atomic") {
			sizes = []int{8}
		}
		for _, size := range sizes {
			var theirs, ours []float64
			for range max(1, *rounds) {
				theirs = append(theirs, perftestFigure(t, device, c.program, size, c.field))
				ours = append(ours, ourFigure(t, device, c.test, size, c.column))
			}
			median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
			their, our := median(theirs), median(ours)
			require.Positive(t, our)
			fmt.Fprintf(&b, "| %s, %s | %d | %s | %s | %.2f x |\n", c.test, c.column, size, figure(their), figure(our), our/their)
		}
	}
	t.Log(b.String())
}

func kernel(t *testing.T) string {
	version, err := os.ReadFile("/proc/sys/kernel/osrelease")
	require.NoError(t, err)
	return strings.TrimSpace(string(version)) + " " + runtime.GOARCH
}

func ourFigure(t *testing.T, device, test string, size int, column string) float64 {
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{
		"-device", device, "-test", test, "-sizes", strconv.Itoa(size), "-n", strconv.Itoa(*iterations), "-json",
	}, &out, os.Stderr))
	var lines []map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &lines))
	require.Len(t, lines, 1)
	return lines[0][column].(float64)
}

// perftestFigure runs a program of perftest at both ends.
func perftestFigure(t *testing.T, device string, program []string, size, field int) float64 {
	addr, err := freeport.Address("127.0.0.1")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	args := append(slices.Clone(program[1:]), "-d", device, "-p", port, "-n", strconv.Itoa(*iterations), "-F")
	if program[0] != "ib_atomic_lat" && program[0] != "ib_atomic_bw" {
		args = append(args, "-s", strconv.Itoa(size))
	}
	dev, at, err := open(&options{Device: device, GID: -1})
	require.NoError(t, err)
	if at.global {
		args = append(args, "-x", strconv.Itoa(at.gid.Index))
	}
	require.NoError(t, dev.Close())
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	server := exec.CommandContext(ctx, program[0], args...)
	require.NoError(t, server.Start(), "perftest is there where devices are")
	var out []byte
	for { // until the server listens
		out, err = exec.CommandContext(ctx, program[0], append(args, "127.0.0.1")...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !bytes.Contains(out, []byte("Couldn't connect to")) {
			break
		}
	}
	require.NoError(t, err, "%s", out)
	require.NoError(t, server.Wait()) // ends with its client, or by ctx
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^ *%d +%d +(.*)$`, size, *iterations)).FindSubmatch(out)
	require.NotNil(t, line, "%s", out)
	value, err := strconv.ParseFloat(strings.Fields(string(line[1]))[field], 64)
	require.NoError(t, err, "%s", out)
	return value
}
