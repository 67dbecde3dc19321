package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// TestMain lets the test program be the service.
func TestMain(m *testing.M) {
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestAServiceThatSystemdStartsServesStreams(t *testing.T) {
	activate, err := exec.LookPath("systemd-socket-activate")
	skip.Because(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	port, err := freeport.Address("127.0.0.1")
	require.NoError(t, err)
	for _, at := range []struct{ network, address, plain string }{
		{"tcp", port, "TCP"}, {"unix", t.TempDir() + "/socket", "a Unix socket"},
	} {
		t.Run(at.network, func(t *testing.T) { servesStreams(t, activate, self, at.network, at.address, at.plain) })
	}
}

func servesStreams(t *testing.T, activate, self, network, address, plain string) {
	cmd := exec.Command(activate, "--listen="+address, self) // which becomes the service
	cmd.Stderr = t.Output()
	gone := make(chan struct{})
	require.NoError(t, child.Tie(cmd, gone))
	defer close(gone)
	get := func(d rnet.Dialer) (string, error) {
		client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, network, address)
		}}}
		defer client.CloseIdleConnections()
		got, err := client.Get("http://service/")
		if err != nil {
			return "", err
		}
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		return string(text), err
	}
	var first string
	hang.Eventually(t, "the socket", func() bool {
		var err error
		first, err = get(rnet.Dialer{Transport: rnet.TCP}) // for which the service is started
		return err == nil
	})
	require.Equal(t, "this came over "+plain+"\n", first)
	second, err := get(rnet.Dialer{Transport: rnet.Soft})
	require.NoError(t, err)
	require.Equal(t, "this came over a stream\n", second)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM)) // by which systemd stops it
	require.NoError(t, cmd.Wait())
}

func TestWithoutASocketItSaysWhatItNeeds(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), nil, io.Discard), "systemd-socket-activate")
}

func TestSystemdKnowsTheUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	skip.Because(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, name := range []string{"activated.socket", "activated.service"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		// which is not there
		unit := strings.Replace(string(text), "/usr/local/bin/activated", self, 1)
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(unit), 0o600))
		args = append(args, file)
	}
	out, err := exec.Command(analyze, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), dir, "a warning")
}
