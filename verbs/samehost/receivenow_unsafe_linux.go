package samehost

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReceiveNow takes a piece of what a stream socket holds, and does not wait: it is one
// system call, of which the scheduler is not told. Descriptors that come with it, which it
// reports, are closed elsewhere. With nothing there the error is EAGAIN, at the end of the
// stream n is 0.
func ReceiveNow(fd int, b []byte) (n int, descriptors bool, err syscall.Errno) {
	oob := controls.Get().(*control)
	iov := unix.Iovec{Base: unsafe.SliceData(b)}
	iov.SetLen(len(b))
	header := unix.Msghdr{Iov: &iov, Control: &oob[0]}
	header.SetIovlen(1)
	header.SetControllen(len(oob))
	got, _, err := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&header)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err == 0 {
		n = int(got)
		// Those that the process has no room for the kernel has closed here, and says so.
		descriptors = header.Controllen > 0 || header.Flags&unix.MSG_CTRUNC != 0
		if header.Controllen > 0 {
			CloseReceived(rightsIn(oob[:header.Controllen])...)
		}
	}
	controls.Put(oob)
	return n, descriptors, err
}
