package main

import (
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/container"
	"github.com/seed-b9b531af/ramjet/internal/skip"
)

// The server and the client are in containers that have a directory in common.
func TestAServerInAContainerIsReplacedWithoutLoss(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short")
	}
	server, client, err := container.Pair()
	skip.Because(t, err)
	defer server.Close()
	defer client.Close()
	t.Setenv("RNET_TRANSPORT", "")
	t.Setenv("RNET_DIR", t.TempDir())
	self, err := os.Executable()
	require.NoError(t, err)
	address := net.JoinHostPort(server.IP, "7001")
	// Process 1 of the container is the shell, with which all others end.
	cmd := exec.Command("sh", "-c", `exec 3<&0; "$@" <&3 3<&- & exec cat 3<&- >/dev/null`, "sh", self, "-tied", "-listen", address)
	cmd.Stderr = os.Stderr
	s, err := startCommand(cmd, func(*process) error { return server.Start(cmd, (*exec.Cmd).Start) })
	require.NoError(t, err)
	require.Equal(t, address, s.addr)
	defer s.stop()
	cmd = exec.Command(self, "-dial", address, "-n", "10")
	var out []byte
	require.NoError(t, client.Start(cmd, func(cmd *exec.Cmd) error {
		out, _ = cmd.CombinedOutput()
		return nil
	}))
	require.True(t, cmd.ProcessState.Success(), string(out))
	t.Log(string(out))
}
