package guesttest

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// addresses are those of the interface that a device is on.
var addresses = map[string][]string{
	"rxe0": {"10.0.0.1", "fd00::1"},
	"siw0": {"10.0.2.1", "fd00:2::1"},
}

func TestEveryDeviceIsThere(t *testing.T) {
	links := ""
	for _, device := range devices(t) {
		if links == "" {
			links = output(t, "rdma", "link")
		}
		require.Contains(t, links, "link "+device+"/1 state ACTIVE physical_state LINK_UP")
		require.Contains(t, output(t, "ibv_devinfo", "-d", device), "PORT_ACTIVE")
	}
	nodes, err := filepath.Glob("/dev/infiniband/uverbs*")
	require.NoError(t, err)
	require.Len(t, nodes, len(devices(t)))
	for _, node := range append(nodes, "/dev/infiniband/rdma_cm") {
		file, err := os.OpenFile(node, os.O_RDWR, 0)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
}

func TestPingPongInCRunsOnRXE(t *testing.T) {
	if !strings.Contains(strings.Join(devices(t), ","), "rxe0") {
		t.Skip("there is no rxe0, and iWARP connects with rdma_cm only")
	}
	args := []string{"-d", "rxe0", "-g", "1", "-c", "-n", "200"}
	s := serve(t, tcpListener(t, "18515"), "ibv_rc_pingpong", args...)
	require.Contains(t, output(t, "ibv_rc_pingpong", append(args, "10.0.0.1")...), "200 iters")
	require.Contains(t, s.result(t), "200 iters")
}

func TestRpingInCRunsOnEveryAddress(t *testing.T) {
	for _, device := range devices(t) {
		for _, address := range addresses[device] {
			t.Run(device+"/"+address, func(t *testing.T) {
				var s *server
				var out string
				// siw can leave the client's first message in the socket until a
				// second one comes (rcm/kernelcm/siw_linux.go), which rping does
				// not send: it waits until the server's time is over.
				for tries := 3; tries > 0 && !strings.Contains(out, "ping data: rdma-ping-0"); tries-- {
					s = serve(t, cmListener(t), "rping", "-s", "-a", address, "-C", "10", "-V", "-v")
					out = rping(t, "-c", "-a", address, "-C", "10", "-V", "-v")
					if device != "siw0" {
						break
					}
				}
				require.Contains(t, out, "ping data: rdma-ping-9")
				require.Contains(t, s.result(t), "server ping data: rdma-ping-9")
				require.Contains(t, output(t, "rdma", "link", "show", device+"/1"), "ACTIVE")
			})
		}
	}
}

func TestTheControlGroupLimitsOneDevice(t *testing.T) {
	devices := devices(t)
	const group = "/sys/fs/cgroup/guesttest"
	require.NoError(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(group)) })
	limit := []byte(devices[0] + " hca_handle=0")
	require.NoError(t, os.WriteFile(group+"/rdma.max", limit, 0))
	for _, device := range devices {
		out, err := exec.Command("sh", "-c", "echo $$ >"+group+"/cgroup.procs; exec ibv_devinfo -d "+device).CombinedOutput()
		if device == devices[0] {
			require.Error(t, err, "%s", out)
			require.Contains(t, string(out), "Failed to open device")
		} else {
			require.NoError(t, err, "%s", out)
		}
	}
}

func TestAnotherUserCanBeTaken(t *testing.T) {
	devices(t)
	other, err := user.LookupId("1000")
	require.NoError(t, err)
	require.Equal(t, "guest", other.Username)
	cmd := exec.Command("ibv_devices")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	for _, device := range devices(t) {
		require.Contains(t, string(out), device)
	}
}

func TestLimitsAndFilesAreThoseOfTheJob(t *testing.T) {
	devices(t)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	require.EqualValues(t, 8<<20, limit.Cur)
	dir, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, "guesttest", filepath.Base(dir))
	text, err := os.ReadFile("testdata/deep/file")
	require.NoError(t, err)
	require.Equal(t, "It came with the package.\n", string(text))
	info, err := os.Stat("/tmp")
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|os.ModeSticky|0o777, info.Mode())
}
