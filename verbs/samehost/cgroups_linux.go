package samehost

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUnknownCgroup is a peer whose control group the kernel does not tell.
var ErrUnknownCgroup = errors.New("the kernel does not tell the control group of the process")

// Cgroup returns the id of the control group (version 2) of the process that connected or began to
// listen, as it is now: the number of the inode of the group's directory, which no other group of
// the host has or will have until it is started again. In a group of threads it is that of the
// first one. It is asked for by a descriptor of the process (SO_PEERPIDFD, Linux 6.5;
// PIDFD_GET_INFO, 6.13), so that no other can have taken its number, and the path by which a group
// is known, which differs between namespaces, has no part in it. The error wraps ErrUnknownCgroup
// if the kernel is older, or our PID namespace does not see the process, or it has ended.
func (c *Conn) Cgroup() (id uint64, err error) {
	controlErr := c.raw.Control(func(fd uintptr) {
		var process int
		if process, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err != nil {
			err = os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
			return
		}
		defer unix.Close(process)
		id, err = cgroupOf(process)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return 0, fmt.Errorf("%w%s: %w", ErrUnknownCgroup, c.whyNoCgroup(err), err)
	}
	return id, nil
}

// whyNoCgroup says what can be done where the kernel does not tell.
func (c *Conn) whyNoCgroup(err error) string {
	switch {
	case errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL) && c.peer.PID != 0:
		return " before Linux 6.13, or without control groups; name its user or group, or use a key"
	case c.peer.PID == 0:
		return ", which is in a PID namespace that this one does not see; name its user or group, or use a key"
	}
	return ""
}
