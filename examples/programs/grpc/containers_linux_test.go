package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/internal/container"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// contained is a process in a container. It says a line when it begins, and one for each line
// that it is told.
type contained struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
	end   func() // kills it
}

// contain starts this program in c. The directory in which the processes meet is dir; attr
// and env may say more of how it is started.
func contain(t *testing.T, c *container.Container, attr syscall.SysProcAttr, dir string, env []string, args ...string) *contained {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Path = "/proc/self/exe" // another user may not reach it by its path
	cmd.Env = append(append(os.Environ(), "RNET_DIR="+dir), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &attr
	start := func() error { return c.Start(cmd, (*exec.Cmd).Start) }
	return started(t, cmd, start, func() { cmd.Process.Kill() })
}

func started(t *testing.T, cmd *exec.Cmd, start func() error, end func()) *contained {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, start())
	p := &contained{cmd, stdin, bufio.NewScanner(stdout), end}
	t.Cleanup(p.kill)
	return p
}

// line waits for a line, or the process's end.
func (p *contained) line(t *testing.T) string {
	t.Helper()
	require.True(t, p.lines.Scan(), "the process has ended")
	return p.lines.Text()
}

// kill may be called again.
func (p *contained) kill() {
	p.end()
	p.cmd.Wait()
}

const containerPort = "7001"

// What the calls of a client go over.
const accelerated, fallback = string(rnet.Soft), string(rnet.TCP)

// place returns a directory of its owner, in which each user may make their own.
func place(t *testing.T, owner int) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	require.NoError(t, os.Chown(dir, owner, owner))
	for parent := filepath.Dir(dir); parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		require.NoError(t, os.Chmod(parent, 0o755))
	}
	return dir
}

func serveIn(t *testing.T, c *container.Container, attr syscall.SysProcAttr, dir string, env ...string) *contained {
	t.Helper()
	address := net.JoinHostPort(c.IP, containerPort)
	p := contain(t, c, attr, dir, env, "-listen", address)
	require.Equal(t, child.Announcement+address, p.line(t))
	return p
}

// caller starts a client of the server in another container.
func caller(t *testing.T, c, server *container.Container, attr syscall.SysProcAttr, dir string, env ...string) *contained {
	t.Helper()
	return contain(t, c, attr, dir, env, "call", net.JoinHostPort(server.IP, containerPort))
}

// calls has the client make some, and returns what they went over.
func (p *contained) calls(t *testing.T) string {
	t.Helper()
	_, err := io.WriteString(p.stdin, "call\n")
	require.NoError(t, err)
	return p.line(t)
}

func TestContainersCallEachOther(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short")
	}
	t.Setenv("RNET_TRANSPORT", "")
	server, client, err := container.Pair()
	skip.Because(t, err)
	defer server.Close()
	defer client.Close()
	root := syscall.SysProcAttr{}
	// Root of a user namespace, who is another user outside.
	mapped := syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
	t.Run("by a directory, through restarts of either", func(t *testing.T) {
		dir := place(t, 0)
		s := serveIn(t, server, root, dir)
		c := caller(t, client, server, root, dir)
		require.Equal(t, accelerated, c.calls(t))
		s.kill()
		s = serveIn(t, server, root, dir)
		require.Equal(t, accelerated, c.calls(t), "the server is another process")
		c.kill()
		require.Equal(t, accelerated, caller(t, client, server, root, dir).calls(t), "the client is another process")
		s.kill()
	})
	t.Run("without it", func(t *testing.T) {
		dir := place(t, 0)
		missing := filepath.Join(dir, "missing")
		s := serveIn(t, server, root, dir)
		require.Equal(t, fallback, caller(t, client, server, root, missing).calls(t), "the client has none")
		s.kill()
		s = serveIn(t, server, root, missing)
		require.Equal(t, fallback, caller(t, client, server, root, dir).calls(t), "the server has none")
		s.kill()
	})
	t.Run("of another user", func(t *testing.T) {
		dir := place(t, 0)
		s := serveIn(t, server, root, dir)
		other := syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		require.Equal(t, fallback, caller(t, client, server, other, dir).calls(t))
		s.kill()
	})
	t.Run("in user namespaces of their own", func(t *testing.T) {
		dir := place(t, 1000)
		s := serveIn(t, server, mapped, dir)
		require.Equal(t, accelerated, caller(t, client, server, mapped, dir).calls(t))
		s.kill()
	})
	t.Run("in user namespaces, as two users who have a key", func(t *testing.T) {
		dir := place(t, 0)
		key := filepath.Join(dir, "key")
		require.NoError(t, os.WriteFile(key, []byte("as good as random bytes"), 0o644))
		other := mapped
		other.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1001, Size: 1}}
		other.GidMappings = other.UidMappings
		s := serveIn(t, server, mapped, dir, "RNET_KEY_FILE="+key)
		require.Equal(t, accelerated, caller(t, client, server, other, dir, "RNET_KEY_FILE="+key).calls(t))
		require.Equal(t, fallback, caller(t, client, server, other, dir).calls(t), "the client has none")
		s.kill()
	})
}
