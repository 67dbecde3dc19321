package endpoint

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
)

// Both ends wait for a message that nobody sends.
func TestAnInterruptEndsBothEnds(t *testing.T) {
	var waiting [2]chan struct{}
	for i := range waiting {
		waiting[i] = make(chan struct{})
	}
	wait := func(e *Endpoint, end int) error {
		close(waiting[end])
		_, err := e.Wait(time.Time{}) // ends with the interrupt
		return err
	}
	p := &Program{
		Serve:  func(e *Endpoint, _ net.Conn) error { return wait(e, 0) },
		Client: func(e *Endpoint, _ net.Conn, _ int, _ io.Writer) error { return wait(e, 1) },
	}
	ctx, interrupt := context.WithCancel(t.Context())
	said, out := io.Pipe()
	served, called := make(chan error, 1), make(chan error, 1)
	go func() { served <- p.Run(ctx, []string{"-listen", "127.0.0.1:0"}, out) }()
	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	addr := strings.TrimPrefix(strings.TrimSpace(line), child.Announcement)
	go func() { called <- p.Run(ctx, []string{"-dial", addr}, io.Discard) }()
	<-waiting[0]
	<-waiting[1]
	interrupt()
	require.NoError(t, <-served)
	require.ErrorIs(t, <-called, context.Canceled)
}

// A server serves one client after the other.
func TestAStrangerWhoSaysNothingDoesNotKeepTheNextWaiting(t *testing.T) {
	before := greeting
	greeting = 50 * time.Millisecond
	defer func() { greeting = before }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said, out := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, "127.0.0.1:0", out, func(conn net.Conn) error {
			_, err := Exchange(conn, Address{})
			if err == nil {
				err = Meet(conn)
			}
			if err == nil { // a client may say no more for as long as it likes
				_, err = io.ReadFull(conn, make([]byte, 1))
			}
			return err
		})
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	addr := strings.TrimPrefix(strings.TrimSpace(line), child.Announcement)
	stranger, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer stranger.Close()
	client, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = Exchange(client, Address{})
	require.NoError(t, err)
	require.NoError(t, Meet(client))
	time.Sleep(2 * greeting)
	require.False(t, HungUp(client))
	cancel()
	require.NoError(t, <-served) // ended by cancel
}

func TestThereIsSomethingToCount(t *testing.T) {
	for _, n := range []string{"0", "-1"} {
		require.ErrorContains(t, new(Program).Run(t.Context(), []string{"-n", n}, io.Discard), "-n is "+n)
	}
}
