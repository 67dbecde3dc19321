package samehost

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processInfo is the first version of struct pidfd_info (linux/pidfd.h).
type processInfo struct {
	mask   uint64
	cgroup uint64
	_      [12]uint32 // numbers of the process, its users and groups
}

const (
	infoCgroup = 1 << 2 // PIDFD_INFO_CGROUPID

	// getInfo is PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info), whose size the kernel
	// takes from the number.
	getInfo = 3<<30 | uint32(unsafe.Sizeof(processInfo{}))<<16 | 0xff<<8 | 11
)

// cgroupOf asks for the control group of a process, of which it has a descriptor.
func cgroupOf(process int) (uint64, error) {
	info := processInfo{mask: infoCgroup}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(process), uintptr(getInfo), uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return 0, os.NewSyscallError("ioctl PIDFD_GET_INFO", errno)
	}
	if info.mask&infoCgroup == 0 || info.cgroup == 0 {
		return 0, fmt.Errorf("ioctl PIDFD_GET_INFO: a kernel without control groups: %w", unix.ENOTTY)
	}
	return info.cgroup, nil
}
