package verbsperf

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	require.NoError(t, json.NewDecoder(silent).Decode(&answer)) // the server has made its side, and waits for ours
	require.NoError(t, answer.err())
	ended := make(chan error)
	for range 4 {
		go func() { ended <- measureAt(t.Context(), addr) }()
	}
	for range 4 {
		require.NoError(t, <-ended)
	}
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
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	_, err := swap(newControl(ours), outcome{}, time.Millisecond) // nobody reads
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	go io.Copy(io.Discard, theirs)                                  // ends with the pipe
	_, err = swap(newControl(ours), outcome{}, 50*time.Millisecond) // nobody answers
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
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
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer ln.Close()
			theirs := dialed(t, ln.Addr().String())
			ours, err := ln.Accept()
			require.NoError(t, err)
			defer ours.Close()
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
