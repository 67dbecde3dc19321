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

func TestThereIsSomethingToCount(t *testing.T) {
	for _, n := range []string{"0", "-1"} {
		require.ErrorContains(t, new(Program).Run(t.Context(), []string{"-n", n}, io.Discard), "-n is "+n)
	}
}
