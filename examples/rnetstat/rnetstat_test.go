package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/inspect"
)

// TestMain makes the test binary a server, or rnetstat, when a test started it as that.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		os.Exit(serve())
	}
	if len(os.Args) == 2 && os.Args[1] == "show" {
		os.Args = os.Args[:1]
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve listens, greets whom it accepts, and keeps the connection until it is
// interrupted, or the test that started it is gone.
func serve() int {
	go func(parent int) {
		for os.Getppid() == parent {
			time.Sleep(time.Second)
		}
		os.Exit(1)
	}(os.Getppid())
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	os.Stdout.WriteString(child.Announcement + ln.Addr().String() + "\n")
	var kept []net.Conn
	for {
		c, err := ln.Accept() // ended by the end of the process
		if err != nil {
			return len(kept)
		}
		kept = append(kept, c)
		c.Write([]byte{1}) // it is there
	}
}

// run runs the program and returns what it prints.
func run(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, rnetstat(t.Context(), args, &out))
	return out.String()
}

func onLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has sessions")
	}
}

// self is this process, as an argument.
var self = strconv.Itoa(os.Getpid())

// connected returns where a server in another process listens, to which this
// one has two connections.
func connected(t *testing.T) (address string, sent int) {
	t.Helper()
	onLinux(t)
	server, err := child.Start(t.Context(), "serve")
	require.NoError(t, err)
	t.Cleanup(func() { server.Stop() })
	for range 2 {
		d := rnet.Dialer{Transport: rnet.Soft}
		c, err := d.Dial("tcp", server.Addr)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Write(make([]byte, 3000))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	return server.Addr, 3000
}

// decoded is what -json prints of one look.
func decoded(t *testing.T, text string) (l look) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&l))
	require.False(t, dec.More())
	return l
}

func TestBothProcessesOfASessionAreShown(t *testing.T) {
	address, sent := connected(t)
	l := decoded(t, run(t, "-json", "-once"))
	var client, server *inspect.Snapshot
	for _, p := range l.Processes {
		if p.Snapshot == nil {
			require.NotEmpty(t, p.Error) // of somebody else
			continue
		}
		for _, listener := range p.Snapshot.Listeners {
			if listener.Addr.String() == address {
				server = p.Snapshot
			}
		}
		if p.PID == os.Getpid() {
			client = p.Snapshot
		}
	}
	require.NotNil(t, client)
	require.NotNil(t, server)
	require.Len(t, client.Sessions, 1)
	require.Len(t, server.Sessions, 1)
	require.Equal(t, os.Getpid(), server.Sessions[0].PeerPID)
	require.EqualValues(t, 2*sent, client.Sessions[0].BytesOut)
	require.Len(t, client.Streams, 2)
	require.Equal(t, client.Streams[0].LocalAddr, server.Streams[0].RemoteAddr)

	text := run(t, "-once")
	require.Contains(t, text, self+"  rnetstat.test")
	for _, title := range []string{"LISTEN", "SESSION", "STREAM", "HIT"} {
		require.Contains(t, text, title)
	}
	require.Contains(t, text, "soft soft0")
	require.Contains(t, text, client.Streams[0].LocalAddr.String())
	require.NotContains(t, text, "%!")
}

func TestOneProcessIsShownIfAskedFor(t *testing.T) {
	connected(t)
	l := decoded(t, run(t, "-json", "-once", self))
	require.Len(t, l.Processes, 1)
	require.Equal(t, os.Getpid(), l.Processes[0].PID)
	err := rnetstat(t.Context(), []string{"-once", "1"}, &bytes.Buffer{})
	require.ErrorContains(t, err, "process [1] tells nothing")
}

func TestLooksAreRefreshed(t *testing.T) {
	connected(t)
	text := run(t, "-n", "3", "-every", "1ms", "-json", self)
	require.Equal(t, 3, strings.Count(text, "\n"))
	for line := range strings.Lines(text) {
		require.Len(t, decoded(t, line).Processes, 1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, rnetstat(ctx, nil, &bytes.Buffer{}), "an interrupt is no failure")
}

// Programs of two containers of a pod are both process 1 for themselves, and none for us.
func TestProcessesOfTheSameNumberAreToldApart(t *testing.T) {
	told := func(endpoint string) process {
		return process{Snapshot: &inspect.Snapshot{PID: 1, Program: endpoint}, endpoint: endpoint}
	}
	before := &look{Processes: []process{told("one"), told("other")}}
	for _, endpoint := range []string{"one", "other"} {
		p := told(endpoint)
		require.Equal(t, endpoint, previous(before, &p).Program)
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-every", "0s"}, {"server"}, {"-1"}, {"0"}} {
		require.Error(t, rnetstat(t.Context(), args, &bytes.Buffer{}), "%q", args)
	}
}

// twoLooks shows a process a second apart, with what change does to it.
func twoLooks(t *testing.T, streams int, change func(*inspect.Snapshot)) string {
	t.Helper()
	at := netip.MustParseAddrPort("127.0.0.1:9000")
	snapshot := func(after time.Duration) *inspect.Snapshot {
		begin := time.Unix(1_000_000, 0)
		s := &inspect.Snapshot{Time: begin.Add(after), PID: 7, Program: "server"}
		s.Sessions = []rnet.SessionStats{{Number: 3, Transport: rnet.Soft, Device: "soft0", LocalAddr: at, RemoteAddr: at, Opened: begin, Streams: 3}}
		for _, id := range []uint32{1, 2, 5} {
			s.Streams = append(s.Streams, rnet.StreamStats{Session: 3, ID: id, LocalAddr: at, RemoteAddr: at})
		}
		s.Streams[2].BytesIn = 1 << 40
		return s
	}
	var out bytes.Buffer
	w := &screen{out: &out, streams: streams}
	require.NoError(t, w.show(&look{Processes: []process{{PID: 7, Snapshot: snapshot(0)}}}))
	out.Reset()
	second := snapshot(2 * time.Second)
	change(second)
	require.NoError(t, w.show(&look{Processes: []process{{PID: 7, Snapshot: second}}}))
	return out.String()
}

// fields returns the cells of the line that begins with first.
func fields(t *testing.T, text, first string) []string {
	t.Helper()
	for line := range strings.Lines(text) {
		if cells := strings.Fields(line); len(cells) > 0 && cells[0] == first {
			return cells
		}
	}
	t.Fatalf("no line %q in\n%s", first, text)
	return nil
}

func TestAProcessThatTellsOfSomeStreamsOnlyIsShownAsSuch(t *testing.T) {
	text := twoLooks(t, 2, func(s *inspect.Snapshot) { s.Sessions[0].Streams = 3 })
	require.Contains(t, text, "and 1 streams more\n")
	text = twoLooks(t, 2, func(s *inspect.Snapshot) { s.Sessions[0].Streams, s.Truncated = 5000, true })
	require.Contains(t, text, "and 4998 streams more; the process told of 3, and others may have more traffic\n")
	text = twoLooks(t, 9999, func(s *inspect.Snapshot) { s.Sessions[0].Streams, s.Truncated = 5000, true })
	require.Contains(t, text, "and 4997 streams more; the process told of 3")

	encoded, err := json.Marshal(&look{Processes: []process{{Snapshot: &inspect.Snapshot{Truncated: true}}}})
	require.NoError(t, err)
	require.True(t, decoded(t, string(encoded)).Processes[0].Snapshot.Truncated)
	require.Contains(t, string(encoded), `"truncated":true`)
}

func TestRatesAreWhatGrewPerSecond(t *testing.T) {
	text := twoLooks(t, 2, func(s *inspect.Snapshot) {
		s.Sessions[0].BytesIn, s.Sessions[0].FramesOut = 4096, 10
		s.Sessions[0].PollHits, s.Sessions[0].PollMisses = 3, 1
		s.Streams[1].BytesOut = 1 << 20
		s.Streams[2].BytesIn = 1 << 10 // the number of a former stream
	})
	cells := fields(t, text, "3")
	require.Equal(t, []string{"3", "soft", "soft0", "127.0.0.1:9000", "<-", "127.0.0.1:9000", "0", "2s", "3", "2.0K", "0", "0", "5", "75%"}, cells[:14])
	require.Equal(t, "512K", fields(t, text, "3.2")[4])
	require.Equal(t, "512", fields(t, text, "3.5")[3])
	require.Less(t, strings.Index(text, "3.2"), strings.Index(text, "3.5"), "the busiest first")
	require.NotContains(t, text, "3.1 ")
	require.Contains(t, text, "and 1 streams more")
}

func TestOtherProcessesCannotMoveTheCursor(t *testing.T) {
	text := twoLooks(t, 9, func(s *inspect.Snapshot) {
		s.Program = "\x1b]0;title\a"
		s.Sessions[0].Device = "\x1b[2J"
		s.Sessions[0].RemoteAddr = netip.MustParseAddrPort("[fe80::1%\x1b[2J]:1") // as JSON may have it
		s.Dials = []rnet.DialCount{{Transport: "\r", Reason: "\x1b"}}
	})
	require.NotContains(t, text, "\x1b")
	require.NotContains(t, text, "\r")
	require.NotContains(t, text, "\a")
}

func TestProcessThatDoesNotAnswerIsSaidToBeThere(t *testing.T) {
	var out bytes.Buffer
	w := &screen{out: &out}
	require.NoError(t, w.show(&look{Processes: []process{{PID: 9, Error: "it is stopped\n"}}}))
	require.Contains(t, out.String(), "9  it is stopped?\n")
}

func TestTheUsageExplainsEachColumn(t *testing.T) {
	for _, c := range append(append([]column{}, sessionColumns...), streamColumns...) {
		switch title := strings.TrimSuffix(c.title, "/s"); title {
		case "", "PID", "PROGRAM", "LOCAL", "REMOTE", "STREAM": // say it themselves
		default:
			require.Regexp(t, `(?m)^  (IN )?`+title+`\b`, usage)
		}
	}
	_, sessions, _ := strings.Cut(usage, "Columns of sessions")
	sessions, _, _ = strings.Cut(sessions, "Columns of streams")
	for _, named := range regexp.MustCompile(`(?m)^  ([A-Z]\S*) +(.*)$`).FindAllStringSubmatch(sessions, -1) {
		shown := slices.ContainsFunc(sessionColumns, func(c column) bool { return c.title == named[1] })
		require.NotEqual(t, shown, strings.HasPrefix(named[2], "on a page"), "%s is a column of the screen: %v", named[1], shown)
	}
}
