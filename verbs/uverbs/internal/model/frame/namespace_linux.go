//go:build amd64 || arm64

package frame

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

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

// NamespaceAddresses are those of the first host in a network namespace; those
// of the others follow.
func NamespaceAddresses() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd77::1")}
}

// AddAddresses gives the loopback interface of a new network namespace the addresses of so many
// hosts, and takes it into service. Then they reach each other by TCP.
func AddAddresses(hosts int) error {
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
	for _, a := range NamespaceAddresses() {
		for i := range hosts {
			add := addIPv6
			if a.Is4() {
				add = addIPv4
			}
			if err := add(fd, i, a); err != nil {
				return fmt.Errorf("address %v on lo: %w", a, err)
			}
			a = a.Next()
		}
	}
	return nil
}

func addIPv4(fd, number int, a netip.Addr) error {
	alias, err := unix.NewIfreq(fmt.Sprintf("lo:%d", number))
	if err != nil {
		return err
	}
	if err := alias.SetInet4Addr(a.AsSlice()); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias)
}

func addIPv6(_, _ int, a netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request := struct { // struct in6_ifreq
		address [16]byte
		prefix  uint32
		index   int32
	}{a.As16(), 128, 1} // lo
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}
