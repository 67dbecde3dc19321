package cgroup

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a control group of version 2, in which processes can be started:
// syscall.SysProcAttr has UseCgroupFD.
type Group struct {
	ID  uint64   // that the kernel has for it
	Dir *os.File // its directory

	in   *os.File
	name string
}

// New makes a control group below the root of the hierarchy, which need not be mounted.
// It takes the rights of root. The caller closes it.
func New(name string) (*Group, error) {
	root, err := hierarchy()
	if err != nil {
		return nil, fmt.Errorf("control groups need the rights of root, and Linux 5.2: %w", err)
	}
	return newGroup(root, fmt.Sprintf("%s-%d", name, unix.Getpid()))
}

// Below makes a group in the group. It has to be closed first.
func (c *Group) Below(name string) (*Group, error) {
	fd, err := unix.FcntlInt(c.Dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return newGroup(os.NewFile(uintptr(fd), c.name), name)
}

func newGroup(in *os.File, name string) (*Group, error) {
	c := &Group{in: in, name: name}
	if err := c.make(); err != nil {
		in.Close()
		return nil, err
	}
	return c, nil
}

// KernelTells reports whether the kernel tells the control groups of other processes
// (PIDFD_GET_INFO, Linux 6.13).
func KernelTells() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 13
}

// hierarchy returns the root of the hierarchy, mounted where nobody else sees it.
func hierarchy() (*os.File, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(fd), "cgroup2"), nil
}

func (c *Group) make() error {
	root := int(c.in.Fd())
	if err := unix.Mkdirat(root, c.name, 0o755); err != nil {
		return &os.PathError{Op: "mkdirat", Path: c.name, Err: err}
	}
	fd, err := unix.Openat(root, c.name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	var st unix.Stat_t
	if err == nil {
		c.Dir = os.NewFile(uintptr(fd), c.name)
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		c.remove()
		return &os.PathError{Op: "open", Path: c.name, Err: err}
	}
	c.ID = st.Ino
	return nil
}

// Take moves a process into the group.
func (c *Group) Take(pid int) error {
	fd, err := unix.Openat(int(c.Dir.Fd()), "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: c.name + "/cgroup.procs", Err: err}
	}
	procs := os.NewFile(uintptr(fd), "cgroup.procs")
	defer procs.Close()
	_, err = fmt.Fprint(procs, pid)
	return err
}

// Close removes the group, of which the processes have ended.
func (c *Group) Close() error {
	defer c.in.Close()
	c.Dir.Close()
	return c.remove()
}

func (c *Group) remove() error {
	const tries = 1000
	for try := 1; ; try++ {
		err := unix.Unlinkat(int(c.in.Fd()), c.name, unix.AT_REMOVEDIR)
		if err != unix.EBUSY || try == tries {
			return err
		}
		// the last process leaves after its parent has learned of its end
		time.Sleep(10 * time.Millisecond)
	}
}
