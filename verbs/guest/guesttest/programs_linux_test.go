package guesttest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a C program may take, in emulation and on a busy machine.
const patience = time.Minute

// devices returns the devices that this guest was asked to have.
func devices(t *testing.T) []string {
	list, ok := os.LookupEnv("RAMJET_DEVICES")
	if !ok {
		t.Skip("RAMJET_DEVICES is not set: this runs in the guest only")
	}
	require.NotEmpty(t, list)
	return strings.Split(list, ",")
}

// output runs a program that must succeed and returns what it printed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v:\n%s", name, args, out)
	return string(out)
}

// rping runs rping as a client.
func rping(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "rping", args...).CombinedOutput()
	if !failedAtItsEnd(string(out)) {
		require.NoError(t, err, "rping %v:\n%s", args, out)
	}
	return string(out)
}

// failedAtItsEnd says whether rping has failed after all that it was to do: that of Debian
// 12 destroys the event channel while another thread of it may read from that, whose error
// ends the program (rdma-core, librdmacm/examples/rping.c, main and cm_thread; later ones
// end the thread first).
func failedAtItsEnd(printed string) bool {
	return strings.Contains(printed, " DISCONNECT EVENT...\nrdma_get_cm_event: Bad file descriptor")
}

// server is a C program that waits for a peer.
type server struct {
	cmd  *exec.Cmd
	text bytes.Buffer
	end  chan error
}

// serve starts a server and waits until listening says that it can be reached.
func serve(t *testing.T, listening func() bool, name string, args ...string) *server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	s := &server{cmd: exec.CommandContext(ctx, name, args...), end: make(chan error, 1)}
	s.cmd.Stdout, s.cmd.Stderr = &s.text, &s.text
	require.NoError(t, s.cmd.Start())
	t.Cleanup(cancel)
	ended := make(chan struct{})
	go func() {
		s.end <- s.cmd.Wait() // until the program ends, or its time
		close(ended)
	}()
	for !listening() {
		select {
		case <-ended:
			t.Fatalf("%v has ended before it could be reached:\n%s", s.cmd.Args, s.text.String())
		case <-ctx.Done():
			t.Fatalf("%v cannot be reached", s.cmd.Args)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return s
}

// result waits for the server's end and returns what it printed.
func (s *server) result(t *testing.T) string {
	t.Helper()
	err := <-s.end // comes at the end of its time at the latest
	if !failedAtItsEnd(s.text.String()) {
		require.NoError(t, err, "%v:\n%s", s.cmd.Args, s.text.String())
	}
	return s.text.String()
}

// tcpListener says whether somebody listens on the TCP port.
func tcpListener(t *testing.T, port string) func() bool {
	return func() bool { return strings.Contains(output(t, "ss", "-Hltn", "sport = :"+port), "LISTEN") }
}

// cmListener says whether there is a listener of rdma_cm, on any port.
func cmListener(t *testing.T) func() bool {
	return func() bool { return strings.Contains(output(t, "rdma", "resource", "show", "cm_id"), "state LISTEN") }
}
