package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/stretchr/testify/require"
)

var rounds = flag.Int("rstream.rounds", 1, "rounds of TestBesideRstream; its figures need 5 and a machine that does nothing else")

// TestBesideRstream measures kernel TCP, ramjet over each kernel device, and
// rstream of librdmacm, which is rsocket over the same device, alternately:
//
//	go test -exec guest ./bench/harness -run TestBesideRstream -v -rstream.rounds 5
//
// It runs in the virtual machine (verbs/guest), prints a table,
// and fails if something does not work, not if it is slow.
func TestBesideRstream(t *testing.T) {
	devices := os.Getenv("RAMJET_DEVICES")
	if devices == "" {
		t.Skip("there is no RDMA device; run it with go test -exec guest, see verbs/guest")
	}
	for device := range strings.SplitSeq(devices, ",") {
		t.Run(device, func(t *testing.T) {
			host := hostOf(t, device)
			measured := map[string][]float64{}
			note := func(name string, value float64) { measured[name] = append(measured[name], value) }
			for round := range *rounds {
				for _, transport := range []string{"tcp", device} {
					for _, profile := range []string{"balanced", "latency"} {
						trip, bandwidth := benchOnce(t, transport, profile)
						note(profile+" trip "+transport, trip)
						note(profile+" bandwidth "+transport, bandwidth)
					}
				}
				// Its calls that block poll for 10 us and then sleep; those
				// that do not are called until they have something.
				for i, mode := range [][2]string{{"balanced", "b"}, {"latency", "n"}} {
					port := 20000 + 10*round + 2*i
					note(mode[0]+" trip rstream", 2*rstream(t, host, port, mode[1], "64", "1", "2000").perTransfer)
					note(mode[0]+" bandwidth rstream", rstream(t, host, port+1, mode[1], "65536", "100", "5").bandwidth)
				}
			}
			mid := func(name string) float64 {
				slices.Sort(measured[name])
				return measured[name][len(measured[name])/2]
			}
			var table bytes.Buffer
			fmt.Fprintf(&table, "%s, median of %d rounds\n%-30s %10s %10s %10s\n", device, *rounds, "", "TCP", "rstream", "ramjet")
			for _, mode := range [][2]string{{"balanced", "blocking"}, {"latency", "polling"}} {
				row := func(name string, format string) {
					fmt.Fprintf(&table, "%-30s", map[string]string{"trip": "round trip, 64 B, ", "bandwidth": "64 KiB messages, "}[name]+mode[1])
					for _, transport := range []string{"tcp", "rstream", device} {
						fmt.Fprintf(&table, format, mid(mode[0]+" "+name+" "+transport))
					}
					fmt.Fprintln(&table)
				}
				row("trip", " %7.1f us")
				row("bandwidth", " %5.0f MB/s")
			}
			t.Log("\n" + table.String())
		})
	}
}

// benchOnce returns the mean round trip of 64 bytes in microseconds and the
// throughput of 64 KiB messages in MB/s.
func benchOnce(t *testing.T, transport, profile string) (trip, bandwidth float64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "out.json")
	var out, progress lockedBuffer
	err := Run(t.Context(), []string{"-transport", transport, "-profile", profile, "-test", "requests,throughput", "-conns", "1", "-size", "64", "-bulk", "64KiB",
		"-rounds", "1", "-duration", "1s", "-warmup", "200ms", "-json", file}, &out, &progress)
	require.NoError(t, err, progress.String())
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(text, &r))
	for _, res := range r.Results {
		c := res.Cells[0]
		require.Zero(t, c.Failures, c.Failure)
		if res.Workload.Kind == oneWay {
			bandwidth = c.Median[throughput] / 1e6
		} else {
			trip = 1e6 / c.Median[rate]
		}
	}
	require.Positive(t, trip)
	require.Positive(t, bandwidth)
	return trip, bandwidth
}

type rstreamResult struct {
	perTransfer float64 // us, one way
	bandwidth   float64 // MB/s
}

// The last line has name, bytes, transfers, iterations, total, time, Gb/s and
// us for a transfer.
var rstreamLine = regexp.MustCompile(`(?m)^custom\s.*\s([0-9.]+)\s*$`)

// rstreamLimit is many times what a run takes in the emulated machine.
const rstreamLimit = time.Minute

// rstream runs server and client, again if they do not end: over siw they wait for each other at times. Each run
// has a port of its own: a port stays in use for a while.
func rstream(t *testing.T, host string, port int, mode, size, transfers, iterations string) rstreamResult {
	t.Helper()
	bytesEach, err := strconv.Atoi(size)
	require.NoError(t, err)
	var said []byte
	for try := range 3 {
		said, err = rstreamOnce(t, host, "-p", strconv.Itoa(port+1000*try), "-T", mode, "-S", size, "-C", transfers, "-I", iterations)
		if err == nil {
			break
		}
		t.Logf("rstream: %v: %s", err, said)
	}
	require.NoError(t, err, "%s", said)
	us, err := strconv.ParseFloat(string(rstreamLine.FindSubmatch(said)[1]), 64)
	require.NoError(t, err)
	return rstreamResult{perTransfer: us, bandwidth: float64(bytesEach) / us}
}

// rstreamOnce returns what the client says, which has the line with the figures if there is no error.
func rstreamOnce(t *testing.T, host string, common ...string) (said []byte, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), rstreamLimit)
	defer cancel()
	server := exec.CommandContext(ctx, "rstream", append([]string{"-b", host}, common...)...)
	require.NoError(t, server.Start())
	defer server.Wait() // ended by the client's end, or the kill
	defer server.Process.Kill()
	for ctx.Err() == nil { // until the server listens
		said, err = exec.CommandContext(ctx, "rstream", append([]string{"-s", host}, common...)...).CombinedOutput()
		if err == nil && rstreamLine.Match(said) {
			return said, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return said, cmp.Or(ctx.Err(), err)
}

// hostOf returns the address at which a device of the virtual machine is
// measured.
func hostOf(t *testing.T, device string) string {
	t.Helper()
	devices, err := rdmahost.Describe()
	require.NoError(t, err)
	for _, d := range devices {
		if d.Name == device {
			host, ok := addressOf(d)
			require.True(t, ok, "%+v", d)
			return host
		}
	}
	t.Fatalf("there is no %s", device)
	return ""
}

func TestEachKernelDeviceIsATransport(t *testing.T) {
	devices := os.Getenv("RAMJET_DEVICES")
	if devices == "" {
		t.Skip("there is no RDMA device; run it with go test -exec guest, see verbs/guest")
	}
	for name := range strings.SplitSeq(devices, ",") {
		require.NotNil(t, net.ParseIP(hostOf(t, name)))
		require.Contains(t, transportNames(), name)
	}
}
