// Package sys has the system calls of the software HCA: memory that processes share
// (memfd, mmap), and what wakes one that sleeps (sockets, futex, eventfd).
package sys

import (
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Refuse, which only tests set, is asked before each system call of the software HCA
// that can fail, and its error is then that of the call.
var Refuse atomic.Pointer[func(call string) error]

// Refused returns the error with which a call has to fail, which a test set.
func Refused(call string) error {
	if f := Refuse.Load(); f != nil {
		return (*f)(call)
	}
	return nil
}

func memfdCreate(name string, flags int) (int, error) {
	call := "memfd_create"
	if flags&unix.MFD_NOEXEC_SEAL != 0 {
		call = "memfd_create with MFD_NOEXEC_SEAL"
	}
	if err := Refused(call); err != nil {
		return -1, err
	}
	return unix.MemfdCreate(name, flags)
}

// NewMemfd makes an unsealed memfd of size bytes that nobody can execute.
// Kernels before 6.3 do not know that wish, and have all memfds executable.
func NewMemfd(name string, size int) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := memfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = memfdCreate(name, flags)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	err = Refused("ftruncate")
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("ftruncate", err)
	}
	return fd, nil
}

// Allocate gives memory to the bytes of a memfd from first to end.
func Allocate(fd, first, end int) error {
	if err := Refused("fallocate"); err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	err := error(unix.EINTR)
	for err == unix.EINTR { // by a signal: the scheduler's, for one
		err = unix.Fallocate(fd, 0, int64(first), int64(end-first))
	}
	return os.NewSyscallError("fallocate", err)
}

// Seal adds seals to a memfd.
func Seal(fd, seals int) error {
	if err := Refused("fcntl F_ADD_SEALS"); err != nil {
		return os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("fcntl F_ADD_SEALS", err)
}

var errNotSealed = errors.New("descriptor from the peer is not a sealed memfd of the announced size")

// CheckSealed makes sure that fd, which came from a peer, is a memfd of least to most bytes
// that keeps its size while we have it mapped. When we are the last who have it, its memory is
// freed in our call of munmap, which takes a second for each GiB or two, whatever part is mapped.
func CheckSealed(fd int, least, most int64) error {
	const need = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if Refused("fcntl F_GET_SEALS") != nil {
		return errNotSealed
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&need != need {
		return errNotSealed
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size < least || st.Size > most {
		return errNotSealed
	}
	// A memfd of huge pages can be sealed too, but a hole punched into it may
	// not be filled again, and it cannot be mapped in pieces of pages.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return errNotSealed
	}
	return nil
}

// DupFD duplicates a descriptor; programs that this process starts do not get it.
func DupFD(fd int) (int, error) {
	if err := Refused("dup"); err != nil {
		return -1, os.NewSyscallError("dup", err)
	}
	nfd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return nfd, os.NewSyscallError("dup", err)
}

// CloseFDs closes descriptors; -1 is none.
func CloseFDs(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
