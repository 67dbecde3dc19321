package container

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Container is a network namespace, in which processes can be started.
type Container struct {
	IP      string // its address in the network
	Network string // the path of the network namespace

	bridge *Container  // ends with it; nil: another one's does
	work   chan func() // for the thread that is in it
}

// Pair makes two containers on one bridge, which is in a network namespace of its own, as
// that of a host. It takes the rights of root and the program ip. The caller closes both.
func Pair() (a, b *Container, err error) {
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, nil, fmt.Errorf("containers need the program ip (iproute2): %w", err)
	}
	bridge, err := open("")
	if err != nil {
		return nil, nil, err
	}
	if a, err = open("10.99.0.1"); err != nil {
		bridge.Close()
		return nil, nil, err
	}
	a.bridge = bridge
	if b, err = open("10.99.0.2"); err != nil {
		a.Close()
		return nil, nil, err
	}
	err = errors.Join(bridge.ip("link", "add", "bridge", "type", "bridge"), bridge.ip("link", "set", "bridge", "up"))
	for i, c := range []*Container{a, b} {
		if err == nil {
			port := fmt.Sprint("port", i)
			err = errors.Join(
				bridge.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", c.Network),
				bridge.ip("link", "set", port, "master", "bridge", "up"),
				c.ip("addr", "add", c.IP+"/24", "dev", "eth0"), c.ip("link", "set", "eth0", "up"), c.ip("link", "set", "lo", "up"))
		}
	}
	if err != nil {
		a.Close()
		b.Close()
		return nil, nil, fmt.Errorf("containers need a bridge and veth interfaces: %w", err)
	}
	return a, b, nil
}

func open(ip string) (*Container, error) {
	c := &Container{IP: ip, work: make(chan func())}
	begun := make(chan error)
	go c.serve(begun)
	if err := <-begun; err != nil { // ends with the namespace
		return nil, fmt.Errorf("containers need the rights of root, also of a user namespace (unshare --map-root-user): %w", os.NewSyscallError("unshare", err))
	}
	return c, nil
}

// serve makes the namespace, and does the work in it until Close. The thread ends with it.
func (c *Container) serve(begun chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // which is the whole process's to others, and does not end
		defer runtime.UnlockOSThread()
		elsewhere := make(chan error)
		go c.serve(elsewhere)
		begun <- <-elsewhere
		return
	}
	err := unix.Unshare(unix.CLONE_NEWNET)
	c.Network = fmt.Sprintf("/proc/%d/task/%d/ns/net", unix.Getpid(), unix.Gettid())
	begun <- err
	if err != nil {
		return
	}
	for do := range c.work {
		do()
	}
}

// Start starts a process in the container, in other namespaces of its own. Start of cmd is
// called by start, in a thread that is in the network namespace.
func (c *Container) Start(cmd *exec.Cmd, start func(*exec.Cmd) error) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL // with the thread
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	return c.do(func() error { return start(cmd) })
}

func (c *Container) do(f func() error) error {
	done := make(chan error)
	c.work <- func() { done <- f() }
	return <-done // ends with f
}

func (c *Container) ip(args ...string) error {
	return c.do(func() error {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// Close ends the container, and kills the processes that are left in it.
func (c *Container) Close() {
	if c.bridge != nil {
		c.bridge.Close()
	}
	close(c.work)
}
