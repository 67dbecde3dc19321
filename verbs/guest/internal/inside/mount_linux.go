package inside

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

var mounts = []struct {
	kind, target, data string
}{
	{"proc", "/proc", ""},
	{"sysfs", "/sys", ""},
	{"devtmpfs", "/dev", ""}, // it also makes /dev/infiniband, with the drivers' modes
	{"devpts", "/dev/pts", "ptmxmode=0666"},
	{"tmpfs", "/dev/shm", "mode=1777"},
	{"tmpfs", "/run", "mode=0755"},
	{"cgroup2", "/sys/fs/cgroup", ""},
}

// mountAll mounts what a running system has.
func mountAll() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		err := unix.Mount(m.kind, m.target, m.kind, 0, m.data)
		// Some kernels mount /dev before the first process.
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
		}
	}
	const control = "/sys/fs/cgroup/cgroup.subtree_control"
	if err := os.WriteFile(control, []byte("+rdma"), 0); err != nil {
		return fmt.Errorf("the rdma cgroup controller: %w", err)
	}
	for link, target := range map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return mountTemporary()
}

// mountTemporary mounts /tmp and moves there what the archive has brought to it:
// go test makes its binaries below /tmp.
func mountTemporary() error {
	if err := os.MkdirAll("/tmp", 0o1777); err != nil {
		return err
	}
	below, err := os.Open("/tmp")
	if err != nil {
		return err
	}
	defer below.Close()
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"); err != nil {
		return fmt.Errorf("mount tmpfs on /tmp: %w", err)
	}
	covered := fmt.Sprintf("/proc/self/fd/%d", below.Fd())
	if err := os.CopyFS("/tmp", os.DirFS(covered)); err != nil {
		return err
	}
	names, err := below.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := os.RemoveAll(covered + "/" + name); err != nil {
			return err
		}
	}
	return nil
}
