package verbsperf

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/rcm"
)

// oneMessage is what a client may wish.
var oneMessage = spec{Test: "send_lat", Size: 8, Iterations: 1, QPs: 1, Depth: 2, Mod: 1}

// startServing serves soft0 until the test ends, and returns where.
func startServing(t *testing.T) (addr string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	said, announced := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, []string{"-listen", "127.0.0.1:0"}, announced, io.Discard) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	line := make([]byte, 100)
	n, err := said.Read(line) // ends with the server's announcement
	require.NoError(t, err)
	return strings.TrimSpace(strings.TrimPrefix(string(line[:n]), announcement))
}

func dialed(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// connected returns both ends of a connection.
func connected(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	theirs = dialed(t, ln.Addr().String())
	ours, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close() })
	return ours, theirs
}

// measureAt makes a short measurement with a server.
func measureAt(ctx context.Context, addr string) error {
	return Run(ctx, []string{"-dial", addr, "-n", "5", "-test", "send_lat,read_bw", "-sizes", "8"}, io.Discard, os.Stderr)
}

// A client that stops in the middle of its set-up holds up nobody, and many measure at once.
func TestAServerServesClientsAtOnce(t *testing.T) {
	addr := startServing(t)
	silent := dialed(t, addr)
	require.NoError(t, json.NewEncoder(silent).Encode(oneMessage))
	var answer outcome
	// the server has made its side, and waits for ours
	require.NoError(t, json.NewDecoder(silent).Decode(&answer))
	require.NoError(t, answer.err())
	ended := make(chan error)
	for range 4 {
		go func() { ended <- measureAt(t.Context(), addr) }()
	}
	for range 4 {
		require.NoError(t, <-ended)
	}
}

func TestTheServerOfARunEndsWithItHoweverThatEnds(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	both, held, err := os.Pipe()
	require.NoError(t, err)
	defer both.Close()
	args := []string{Page, "-test", "send_lat", "-n", "2000", "-sizes", "1"}
	for size := 2; size < 1000; size++ { // which takes longer than until the kill
		args[len(args)-1] += fmt.Sprintf(",%d", size)
	}
	run := exec.Command(self, args...)
	run.Stderr = held // and the server's
	stdout, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	require.NoError(t, held.Close())
	_, err = stdout.Read(make([]byte, 1)) // the server serves
	require.NoError(t, err)
	require.NoError(t, run.Process.Kill())
	require.Error(t, run.Wait())
	require.NoError(t, both.SetReadDeadline(time.Now().Add(patience)))
	_, err = io.Copy(io.Discard, both) // ends with both
	require.NoError(t, err)
}

func TestAClientOfAFullServerWaitsForAPlace(t *testing.T) {
	addr := startServing(t)
	var holders []net.Conn
	for range maxClients {
		holders = append(holders, dialed(t, addr))
		require.NoError(t, json.NewEncoder(holders[len(holders)-1]).Encode(oneMessage))
		var answer outcome
		require.NoError(t, json.NewDecoder(holders[len(holders)-1]).Decode(&answer))
	}
	ended := make(chan error, 1)
	go func() { ended <- measureAt(t.Context(), addr) }()
	require.NoError(t, holders[3].Close())
	require.NoError(t, <-ended) // once the server has seen that
}

func TestClientsShareMemory(t *testing.T) {
	addr := startServing(t)
	greedy := oneMessage
	greedy.QPs, greedy.Depth, greedy.Mod = maxQPs, 1<<30, 1 // more than a server has for all
	c := dialed(t, addr)
	require.NoError(t, json.NewEncoder(c).Encode(greedy))
	var answer outcome
	require.NoError(t, json.NewDecoder(c).Decode(&answer))
	require.ErrorContains(t, answer.err(), "are left by other clients")

	b := &budget{left: 100}
	require.NoError(t, b.take(60))
	require.ErrorContains(t, b.take(50), "40 are left by other clients")
	b.give(60)
	require.NoError(t, b.take(100))
}

func TestTheOtherEndIsNotWaitedForWithoutLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		c := newControl(ours)
		c.within(time.Minute)
		_, err := swap(c, outcome{}) // nobody reads
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		go io.Copy(io.Discard, theirs) // ends with the pipe
		c.within(time.Minute)
		_, err = swap(c, outcome{}) // nobody answers
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

// A client that says each word late holds its place no longer than one that is silent.
func TestASetUpHasOneLimit(t *testing.T) {
	for name, dribble := range map[string]func(*testing.T, *json.Encoder, *json.Decoder){
		"no wish": func(*testing.T, *json.Encoder, *json.Decoder) {},
		"words": func(t *testing.T, out *json.Encoder, in *json.Decoder) {
			time.Sleep(wishLimit - time.Second)
			require.NoError(t, out.Encode(oneMessage))
			for _, word := range []any{outcome{}, hello{QPNs: []uint32{1}}} {
				var theirs json.RawMessage
				require.NoError(t, in.Decode(&theirs))
				time.Sleep(setUpLimit * 2 / 3)
				_ = out.Encode(word) // the second one comes when the server has hung up
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev, at, err := open(&options{Device: "soft0", GID: -1})
				require.NoError(t, err)
				defer dev.Close()
				ours, theirs := net.Pipe()
				defer theirs.Close()
				var held time.Duration
				ended := make(chan error, 1)
				go func() {
					begin := time.Now()
					m := meeting{ctx: t.Context(), dev: dev, place: at, control: newControl(ours), server: true}
					err := m.serve()
					held = time.Since(begin)
					ended <- err
				}()
				dribble(t, json.NewEncoder(theirs), json.NewDecoder(theirs))
				require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
				require.LessOrEqual(t, held, wishLimit+oneMessage.setUp())
			})
		})
	}
}

// refusing is a listener of which some calls fail before it goes on.
type refusing struct {
	net.Listener
	errs []error
}

func (l *refusing) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		return l.Listener.Accept()
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
}

func TestAServerOutlivesAClientThatCannotBeAccepted(t *testing.T) {
	dev, at, err := open(&options{Device: "soft0", GID: -1})
	require.NoError(t, err)
	defer dev.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var said strings.Builder
	ended := make(chan error, 1)
	go func() {
		ended <- serveAt(ctx, &refusing{ln, []error{unix.EMFILE, unix.ECONNABORTED, unix.EPERM}}, dev, at, log.New(&said, "", 0))
	}()
	require.NoError(t, measureAt(t.Context(), ln.Addr().String()))
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, 3, strings.Count(said.String(), "trying again"), said.String())
}

// strangers come to a listener one behind the other.
type strangers struct {
	rcm.Listener
	came int
	last func() // is called when the third one comes
}

func (s *strangers) Accept(context.Context) (rcm.Request, error) {
	if s.came++; s.came == 3 {
		s.last()
	}
	return stranger{}, nil
}

// A stranger knows no token, and has gone when it is rejected.
type stranger struct{ rcm.Request }

func (stranger) PrivateData() []byte { return nil }
func (stranger) Reject([]byte) error { return unix.EPIPE }

func TestStrangersNeitherEndAMeasurementNorHoldItUp(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s := &strangers{last: stop}
	err := (&listener{s, make([]byte, tokenSize)}).acceptQP(ctx, &side{})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 3, s.came)
}

// The server is a process of its own, whose peak tells.
func TestWhatAClientCostsIsCounted(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector has memory of its own")
	}
	for name, sp := range map[string]spec{
		"messages":      {Test: "send_bw", Size: 1 << 16, Iterations: 50, QPs: 50, Depth: 16, Mod: 1},
		"queue pairs":   {Test: "write_bw", Size: 8, Iterations: 20, QPs: 200, Depth: 1, Mod: 1},
		"requests":      {Test: "send_bw", Size: 8, Iterations: 4000, QPs: 20, Depth: 2000, Mod: 1, Both: true},
		"much to write": {Test: "write_bw", Size: 8 << 20, Iterations: 5, QPs: 1, Depth: 2, Mod: 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{Device: "soft0", GID: -1}
			server, addr, err := startServer(t.Context(), &o, os.Stderr)
			require.NoError(t, err)
			defer func() {
				require.NoError(t, server.Process.Kill())
				_ = server.Wait() // it was killed
			}()
			dev, at, err := open(&o)
			require.NoError(t, err)
			defer dev.Close()
			peak := func() int64 {
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.Process.Pid))
				require.NoError(t, err)
				_, line, found := strings.Cut(string(status), "VmHWM:")
				require.True(t, found)
				var kib int64
				_, err = fmt.Sscan(line, &kib)
				require.NoError(t, err)
				return kib << 10
			}
			before := peak()
			m := meeting{ctx: t.Context(), dev: dev, place: at, control: newControl(dialed(t, addr))}
			_, err = m.ask(sp)
			require.NoError(t, err)
			cost := peak() - before
			t.Logf("%d bytes, counted as %d", cost, sp.memory(dev.Attr()))
			require.LessOrEqual(t, cost, sp.memory(dev.Attr()))
		})
	}
}

// A measurement ends with its context, whatever the other end does.
func TestAMeasurementEndsWithItsContext(t *testing.T) {
	dev, at, err := open(&options{Device: "soft0", GID: -1})
	require.NoError(t, err)
	defer dev.Close()
	for name, change := range map[string]func(*spec){
		"polling": func(*spec) {},
		"events":  func(s *spec) { s.Events = true },
		"memory":  func(s *spec) { s.Test = polled },
	} {
		t.Run(name, func(t *testing.T) {
			sp := oneMessage
			change(&sp)
			ours, theirs := connected(t)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				m := meeting{ctx: ctx, dev: dev, place: at, control: newControl(ours), server: true}
				_, _, err := m.one(sp)
				ended <- err
			}()
			other := meeting{ctx: t.Context(), dev: dev, place: at, control: newControl(theirs)}
			s, err := newSide(t.Context(), dev, at, sp)
			require.NoError(t, err)
			defer s.close()
			require.NoError(t, other.agree(nil))
			require.NoError(t, other.connect(s)) // and then it does nothing
			stop()
			require.NoError(t, theirs.Close())
			require.ErrorIs(t, <-ended, context.Canceled)
		})
	}
}

// Nothing that is done once, with the first request, is in the figures.
func TestMessagesGoAheadOfTheMeasurement(t *testing.T) {
	dev, at, err := open(&options{Device: "soft0", GID: -1})
	require.NoError(t, err)
	defer dev.Close()
	ours, theirs := connected(t)
	sp := spec{Test: "atomic_lat", Size: 8, Iterations: 5, QPs: 1, Depth: 2, Mod: 1}
	ended := make(chan error, 1)
	go func() {
		defer theirs.Close()
		client := meeting{ctx: t.Context(), dev: dev, place: at, control: newControl(theirs)}
		_, _, err := client.one(sp)
		ended <- err
	}()
	server := meeting{ctx: t.Context(), dev: dev, place: at, control: newControl(ours), server: true}
	server.control.within(time.Minute)
	s, err := newSide(t.Context(), dev, at, sp)
	require.NoError(t, err)
	defer s.close()
	require.NoError(t, server.agree(nil))
	require.NoError(t, server.connect(s))
	for _, want := range []int{warmUps, warmUps + sp.Iterations} { // FETCH_AND_ADDs of 1
		var done outcome
		require.NoError(t, server.control.receive(&done)) // and now the client waits for us
		require.NoError(t, done.err())
		require.EqualValues(t, want, binary.NativeEndian.Uint64(s.mr.Bytes()[s.half:]))
		require.NoError(t, server.control.send(outcome{}))
	}
	require.NoError(t, <-ended)
}
