package samehost

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerGroups asks for SO_PEERGROUPS, for which golang.org/x/sys has no function. It
// returns nil if the kernel does not tell.
func peerGroups(fd int) []uint32 {
	const most = 1 << 16 // NGROUPS_MAX
	for groups := make([]uint32, 64); ; {
		size := uint32(4 * len(groups))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		n := int(size / 4)
		switch {
		case errno == 0 && n <= len(groups):
			return groups[:n]
		case errno == unix.ERANGE && n > len(groups) && n <= most:
			groups = make([]uint32, n)
		default:
			return nil
		}
	}
}
