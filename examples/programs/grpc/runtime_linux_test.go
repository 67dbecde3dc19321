package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/internal/container"
	"github.com/seed-b9b531af/ramjet/internal/skip"
)

// runc is the program that runs the containers of Docker and Kubernetes.
type runc struct {
	root  string // where it keeps what it knows of containers
	count int
}

// image says how a container is run: what `docker run --user --volume` says.
type image struct {
	user   int
	volume string // at /run/ramjet, where programs look by themselves; none if empty
	access string // to it, rw or ro
}

type (
	object = map[string]any
	list   = []any
)

// bundle makes a container of this program, with arguments.
func (i image) bundle(t *testing.T, c *container.Container, args ...string) (dir string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "rootfs"), 0o755))
	mounts := list{
		object{"destination": "/proc", "type": "proc", "source": "proc"},
		object{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": list{"nosuid", "mode=755"}},
	}
	bind := func(source, destination, access string) {
		mounts = append(mounts, object{"destination": destination, "type": "bind", "source": source, "options": list{"rbind", access}})
	}
	bind(self, "/grpc", "ro")
	// with the race detector it is not static
	for _, libraries := range []string{"/lib", "/lib64", "/usr/lib"} {
		if _, err := os.Stat(libraries); err == nil {
			bind(libraries, libraries, "ro")
		}
	}
	if i.volume != "" {
		bind(i.volume, "/run/ramjet", i.access)
	}
	spec, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"root":       object{"path": "rootfs", "readonly": true},
		"mounts":     mounts,
		"process": object{
			"args": append([]string{"/grpc"}, args...), "cwd": "/", "noNewPrivileges": true,
			"user": object{"uid": i.user, "gid": i.user},
		},
		"linux": object{"namespaces": list{
			object{"type": "pid"}, object{"type": "ipc"}, object{"type": "uts"}, object{"type": "mount"},
			object{"type": "network", "path": c.Network},
		}},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o600))
	return dir
}

func (r *runc) command(args ...string) *exec.Cmd {
	return exec.Command("runc", append([]string{"--root", r.root}, args...)...)
}

// run runs a container, which ends with this process at the latest: its program reads the
// standard input to the end.
func (r *runc) run(t *testing.T, bundle string) *contained {
	t.Helper()
	r.count++
	name := fmt.Sprintf("ramjet-test-%d-%d", os.Getpid(), r.count)
	cmd := r.command("run", "--bundle", bundle, name)
	cmd.Stderr = os.Stderr
	return started(t, cmd, cmd.Start, func() { r.command("delete", "--force", name).Run() })
}

func TestContainersOfARuntimeCallEachOther(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short")
	}
	_, err := exec.LookPath("runc")
	skip.Because(t, err)
	server, client, err := container.Pair()
	skip.Because(t, err)
	defer server.Close()
	defer client.Close()
	r := &runc{root: t.TempDir()}
	address := net.JoinHostPort(server.IP, containerPort)
	if out, err := r.command("run", "--bundle", image{}.bundle(t, server, "-test.list", "^$"), fmt.Sprint("ramjet-test-", os.Getpid())).CombinedOutput(); err != nil {
		skip.Because(t, fmt.Errorf("runc runs no containers here: %w: %s", err, out))
	}
	serve := func(t *testing.T, i image) *contained {
		t.Helper()
		s := r.run(t, i.bundle(t, server, "tied", "-listen", address))
		require.Equal(t, child.Announcement+address, s.line(t))
		return s
	}
	call := func(t *testing.T, i image) *contained {
		t.Helper()
		return r.run(t, i.bundle(t, client, "call", address))
	}
	const user, other = 1000, 1001

	t.Run("with a volume, through restarts of either", func(t *testing.T) {
		dir := place(t, 0)
		s := serve(t, image{user, dir, "rw"})
		c := call(t, image{user, dir, "ro"})
		require.Equal(t, accelerated, c.calls(t))
		s.kill()
		s = serve(t, image{user, dir, "rw"})
		require.Equal(t, accelerated, c.calls(t), "the server is another container")
		c.kill()
		require.Equal(t, accelerated, call(t, image{user, dir, "ro"}).calls(t), "the client is another container")
		s.kill()
	})
	t.Run("without it", func(t *testing.T) {
		dir := place(t, 0)
		s := serve(t, image{user, dir, "rw"})
		require.Equal(t, fallback, call(t, image{user: user}).calls(t), "the client has none")
		s.kill()
		s = serve(t, image{user: user})
		require.Equal(t, fallback, call(t, image{user, dir, "ro"}).calls(t), "the server has none")
		s.kill()
	})
	t.Run("of another user", func(t *testing.T) {
		dir := place(t, 0)
		s := serve(t, image{user, dir, "rw"})
		require.Equal(t, fallback, call(t, image{other, dir, "ro"}).calls(t))
		s.kill()
	})
}
