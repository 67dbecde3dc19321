package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the command and the measured processes too,
// and gives all of them transports that do not work.
func TestMain(m *testing.M) {
	listenTCP := transports[0].listen
	var dialed atomic.Int64
	transports = append(transports,
		transport{
			name:   "refused",
			listen: func(site) (net.Listener, error) { return nil, errors.New("nobody may listen") },
		},
		transport{
			name:   "lost",
			listen: listenTCP,
			dial: func(string) (net.Conn, error) {
				return nil, fmt.Errorf("nobody is there, with profile %q", os.Getenv("RNET_PROFILE"))
			},
		},
		transport{
			name:   "half",
			listen: listenTCP,
			dial: func(addr string) (net.Conn, error) {
				if dialed.Add(1)%2 == 0 {
					return nil, errors.New("enough")
				}
				return net.Dial("tcp", addr)
			},
		},
		transport{
			name:   "stuck",
			listen: listenTCP,
			dial: func(string) (net.Conn, error) {
				time.Sleep(math.MaxInt64) // select {} would be a deadlock to a runtime without cgo
				return nil, nil
			},
		},
		transport{
			name:   "dying",
			listen: listenTCP,
			dial:   func(string) (net.Conn, error) { os.Exit(3); return nil, nil },
		},
		transport{
			name: "lingering",
			listen: func(at site) (net.Listener, error) {
				ln, err := listenTCP(at)
				return lingering{ln}, err
			},
			dial: transports[0].dial,
		},
	)
	if len(os.Args) > 1 && os.Args[1] == "-transport" {
		Main()
	}
	runIfChild()
	// A race detector's process sleeps a second before it ends, to let other
	// goroutines report; ours have ended by then.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

// lingering is a listener that does not close.
type lingering struct{ net.Listener }

func (lingering) Close() error { time.Sleep(math.MaxInt64); return nil }

// lockedBuffer takes what several processes write at once.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// quick are flags for a run that is short but does everything.
var quick = []string{"-rounds", "2", "-duration", "5ms", "-warmup", "1ms", "-conns", "1,70", "-streams", "1,3", "-dialers", "1,4", "-idle", "20", "-bulk", "64KiB", "-gnetconns", "1,70"}

func runBench(t *testing.T, args ...string) (table, progress string, err error) {
	t.Helper()
	var stdout bytes.Buffer
	var stderr lockedBuffer
	err = Run(t.Context(), append(quick, args...), &stdout, &stderr)
	return stdout.String(), stderr.String(), err
}

func TestEveryTestRunsOnEveryTransport(t *testing.T) {
	dir := t.TempDir()
	jsonFile, svgFile := filepath.Join(dir, "out.json"), filepath.Join(dir, "out.svg")
	chosen := "tcp,ramjet"
	if unixWorks() {
		chosen = "tcp,unix,ramjet"
	}
	table, progress, err := runBench(t, "-transport", chosen, "-json", jsonFile, "-svg", svgFile)
	require.NoError(t, err, progress)

	text, err := os.ReadFile(jsonFile)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(text, &r))
	require.Len(t, r.Results, 2+1+2+2+2+2+2+1+2)
	for _, res := range r.Results {
		require.Contains(t, table, res.Title)
		require.Contains(t, progress, res.Title)
		for _, c := range res.cells() {
			if res.Floor != nil && c.LeftOut != "" {
				continue // the machine has one processor, or is not Linux
			}
			require.Len(t, c.Rounds, 2, "%s: %s", res.Name, c.LeftOut)
			require.Zero(t, c.Failures, "%s: %s", res.Name, c.Failure)
			for _, m := range res.Metrics {
				require.Contains(t, c.Median, m, res.Name)
			}
			if res.Floor != nil {
				continue
			}
			for _, m := range []metric{p50, p99, p999, rate, throughput} {
				if v, ok := c.Median[m]; ok {
					require.Positive(t, v, "%s: %s", res.Name, m)
				}
			}
		}
	}
	require.Contains(t, table, "\nfloor: what shared memory allows", "which reads the other way round")
	drawing, err := os.ReadFile(svgFile)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(drawing), "<svg"))
}

func TestEventHandlersOfSeveralLoopsDoEachOfTheirTests(t *testing.T) {
	chosen := "tcp,ramjet"
	if unixWorks() {
		chosen = "tcp,unix,ramjet"
	}
	table, progress, err := runBench(t, "-transport", chosen, "-test", "gnet,gnetidle", "-gnetsize", "16,64KiB", "-loops", "2")
	require.NoError(t, err, progress)
	require.Contains(t, table, "gnet echo, 64 KiB, 70 connections, 2 loops")
	require.Contains(t, table, "gnet, idle connection, 20 open, 2 loops")
}

func TestMemoryOfIdleConnectionsIsThatOfTheFirstOnesInEachRound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	_, progress, err := runBench(t, "-transport", "tcp", "-test", "idle", "-idle", "1000", "-json", file)
	require.NoError(t, err, progress)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(text, &r))
	rounds := r.Results[0].Cells[0].Rounds
	require.Len(t, rounds, 2)
	require.InEpsilon(t, rounds[0][goHeap], rounds[1][goHeap], 0.2)
}

func TestOpenLoopRunsOnSeveralConnections(t *testing.T) {
	_, progress, err := runBench(t, "-transport", "tcp", "-test", "requests", "-conns", "3", "-rate", "2000", "-duration", "100ms")
	require.NoError(t, err, progress)
}

func TestOpenLoopSaysThatItMissedItsRate(t *testing.T) {
	table, progress, err := runBench(t, "-transport", "tcp", "-test", "rtt", "-size", "64", "-rate", "1e9")
	require.NoError(t, err, progress)
	require.Contains(t, table, "its latencies are those of an overload")
}

func TestProfilesAreWrittenForBothProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "profiles")
	_, progress, err := runBench(t, "-transport", "tcp", "-test", "rtt", "-size", "64", "-cpuprofile", dir)
	require.NoError(t, err, progress)
	for _, role := range []string{"server", "client"} {
		info, err := os.Stat(filepath.Join(dir, "rtt-64-tcp-"+role+".pprof"))
		require.NoError(t, err)
		require.Positive(t, info.Size())
	}
}

func TestPinnedRunSaysSoOrIsRefused(t *testing.T) {
	cpus, _ := allowedCPUs()
	for pin, needs := range map[string]int{"one": 1, "two": 2} {
		table, progress, err := runBench(t, "-transport", "tcp", "-test", "rtt", "-size", "64", "-pin", pin)
		if len(cpus) < needs {
			require.ErrorIs(t, err, errUsage)
			continue
		}
		require.NoError(t, err, progress)
		require.Contains(t, table, "pinned to")
	}
}

func TestFailuresAreShownAndFailTheCommand(t *testing.T) {
	table, _, err := runBench(t, "-transport", "tcp,refused,lost,dying", "-test", "rtt", "-size", "64")
	require.ErrorContains(t, err, "4 failures")
	require.Contains(t, table, "failed")
	require.Contains(t, table, "round trip, 64 B, refused: 1, the first: listen: nobody may listen")
	require.Contains(t, table, "round trip, 64 B, lost: 2, the first: client: dial: nobody is there")
	require.Contains(t, table, "round trip, 64 B, dying: 1, the first: prepare: the client has ended")
	require.Regexp(t, `p50 +[0-9.]+ [num]?s `, table, "what works is measured all the same")
}

func TestProcessThatHangsIsAFailureAndGoesAway(t *testing.T) {
	o, err := parseOptions(append(quick, "-test", "rtt", "-size", "64", "-transport", "stuck"), io.Discard)
	require.NoError(t, err)
	at := place{serverCPU: -1, clientCPU: -1, stderr: io.Discard, patience: time.Second}
	hung := suite(o)[0]
	hung.Workload.Clients = 30 // they are killed at once
	res := measureTest(t.Context(), hung, o, at, func(int, string) {})
	require.Equal(t, 1, res.Cells[0].Failures)
	require.Contains(t, res.Cells[0].Failure, "gives no answer")
}

func TestProcessThatDoesNotEndIsAFailure(t *testing.T) {
	o, err := parseOptions(append(quick, "-test", "rtt", "-size", "64", "-transport", "lingering"), io.Discard)
	require.NoError(t, err)
	// The patience is also for what works.
	at := place{site: site{Host: "127.0.0.1"}, serverCPU: -1, clientCPU: -1, stderr: io.Discard, patience: 5 * time.Second}
	res := measureTest(t.Context(), suite(o)[0], o, at, func(int, string) {})
	require.Equal(t, 1, res.Cells[0].Failures)
	require.Contains(t, res.Cells[0].Failure, "the server did not end well: ")
}

func TestARoundThatIsLostIsFinishedAllTheSame(t *testing.T) {
	o, err := parseOptions(append(quick, "-test", "requests", "-conns", "2", "-transport", "half"), io.Discard)
	require.NoError(t, err)
	at := place{site: site{Host: "127.0.0.1"}, serverCPU: -1, clientCPU: -1, stderr: io.Discard, patience: patience}
	res := measureTest(t.Context(), suite(o)[0], o, at, func(int, string) {})
	c := res.Cells[0]
	require.Equal(t, 2, c.Failures, c.Failure)
	require.Contains(t, c.Failure, "enough")
	require.EqualValues(t, 2, c.Opened, "in two rounds")
	require.EqualValues(t, 2, c.FellBack)
	require.Empty(t, c.Median)
}

func TestProcessesHaveTheProfileOfTheRun(t *testing.T) {
	t.Setenv("RNET_PROFILE", "latency")
	for profile, says := range map[string]string{"": `profile ""`, "efficient": `profile "efficient"`} {
		table, _, err := runBench(t, "-transport", "lost", "-test", "rtt", "-profile", profile)
		require.Error(t, err)
		require.Contains(t, table, says)
	}
}

func TestAFileThatCannotBeWrittenIsRefusedBeforeAnythingRuns(t *testing.T) {
	for _, option := range []string{"-json", "-svg"} {
		_, progress, err := runBench(t, "-transport", "tcp", option, filepath.Join(t.TempDir(), "missing", "file"))
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.Empty(t, progress)
	}
}

func TestInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out lockedBuffer
	require.ErrorIs(t, Run(ctx, append(quick, "-transport", "tcp"), &out, &out), context.Canceled)
}

func TestUsageIsPrintedAndIsNoFailure(t *testing.T) {
	_, stderr, err := runBench(t, "-help")
	require.True(t, errors.Is(err, flag.ErrHelp))
	for _, g := range groups {
		require.Contains(t, stderr, g.name)
	}
	_, stderr, err = runBench(t, "-rounds", "0")
	require.ErrorIs(t, err, errUsage)
	require.Contains(t, stderr, "-rounds must be at least 1")
}
