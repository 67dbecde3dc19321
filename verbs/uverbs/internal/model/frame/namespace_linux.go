//go:build amd64 || arm64

package frame

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Isolated returns a command that runs this program anew in a network namespace of its own, in
// which [AddAddresses] may be called. Without privileges that takes a user namespace, which not
// every machine allows.
func Isolated(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Args[0] = os.Args[0]
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if uid := os.Getuid(); uid != 0 {
		c.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return c
}

// AddAddresses gives the loopback interface of a new network namespace IPv4 addresses, from the
// first on, and takes it into service. Then hosts of these addresses reach each other by TCP.
func AddAddresses(first netip.Addr, n int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	for i := range n {
		alias, err := unix.NewIfreq(fmt.Sprintf("lo:%d", i))
		if err != nil {
			return err
		}
		if err := alias.SetInet4Addr(first.AsSlice()); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias); err != nil {
			return fmt.Errorf("address %v on lo: %w", first, err)
		}
		first = first.Next()
	}
	return nil
}
