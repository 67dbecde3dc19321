package sys

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// SoPassRights is SO_PASSRIGHTS (Linux 6.16): with 0, who sends descriptors gets EPERM.
const SoPassRights = 83

// NewWakeSocket makes a pair of wake-up sockets. No descriptors come to the near one,
// where the kernel can refuse them.
func NewWakeSocket() (near, far int, err error) {
	if err := Refused("socketpair"); err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	// older kernels have no such option
	_ = unix.SetsockoptInt(ends[0], unix.SOL_SOCKET, SoPassRights, 0)
	// With out-of-band data descriptors can come too, which a read that
	// passes them over closes.
	_ = unix.SetsockoptInt(ends[0], unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	return ends[0], ends[1], nil
}

// SendWake sends a byte to the other wake-up socket of a pair. Whether the call may block is
// said in the call, and not by flags that a peer who has the same socket could
// change; and nothing that the peer does to its end holds what the call needs. If
// there is no room for the byte, others wait to be seen.
func SendWake(fd int) {
	var one [1]byte
	syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&one)), 1, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
}

// DrainWakes takes what a wake-up socket holds and reports whether that is something.
// The peer may have sent descriptors to it, whose last close takes as long as the peer
// wants: none is closed here. Nobody bounds how many those are, so with the first of them
// the socket is spoiled: nothing more comes, and what it holds is not to be read.
func DrainWakes(fd int) (some, spoiled bool) {
	var buf [256]byte
	for range wakeReads {
		n, descriptors, err := samehost.ReceiveNow(fd, buf[:])
		if err != 0 || n == 0 {
			break
		}
		some = true
		if descriptors {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR)
			return true, true
		}
		if n < len(buf) {
			break
		}
	}
	return some, false
}

// wakeReads bounds the work that a peer which sends all the time can make.
const wakeReads = 4

// CloseNear closes a wake-up socket of ours. If the peer has sent descriptors to it, the last
// close is done elsewhere.
func CloseNear(near *os.File) error {
	rest := -1
	if raw, err := near.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.Shutdown(int(fd), unix.SHUT_RDWR) // so that nothing more comes
			var buf [256]byte
			for rest < 0 {
				n, descriptors, err := samehost.ReceiveNow(int(fd), buf[:])
				if n == 0 && err != unix.EINTR && err != unix.ECONNRESET {
					return
				}
				if descriptors { // without a descriptor for that, they are taken out here
					rest, _ = DupFD(int(fd))
				}
			}
		})
	}
	err := near.Close()
	samehost.CloseReceived(rest)
	return err
}

// CheckWakeSocket makes sure that fd, which came from a peer, is a Unix stream socket:
// sending to other things may block, or do something.
func CheckWakeSocket(fd int) error {
	if samehost.IsUnix(fd, unix.SOCK_STREAM) {
		return nil
	}
	return errors.New("wake-up socket from the peer is not a Unix stream socket")
}

const (
	futexWaitOp = 0 // FUTEX_WAIT, not private: the word is shared between processes
	futexWakeOp = 1 // FUTEX_WAKE
)

// FutexWait blocks the thread while *addr is val, for at most timeout if that
// is not nil. It returns at a wake, a change, a signal or the timeout.
func FutexWait(addr *uint32, val uint32, timeout *unix.Timespec) {
	syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWaitOp, uintptr(val), uintptr(unsafe.Pointer(timeout)), 0, 0)
}

// FutexWake wakes a thread in FutexWait on addr, the first. There should be one at most; others would be
// those of a peer, which may have thousands for which we would wait.
func FutexWake(addr *uint32) {
	syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWakeOp, 1, 0, 0, 0)
}

// PollReadable blocks the thread until one of pfds is ready, or for at most timeout
// if that is not nil.
func PollReadable(pfds []unix.PollFd, timeout *unix.Timespec) {
	syscall.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(pfds))), uintptr(len(pfds)), uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
}

// NewStop makes an eventfd that ends PollReadable, -1 if there is no descriptor for it.
func NewStop() int {
	if Refused("eventfd") != nil {
		return -1
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1
	}
	return fd
}

// SetStop ends PollReadable, or the next one.
func SetStop(fd int) {
	one := uint64(1)
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}

// TakeStop has the next PollReadable wait again.
func TakeStop(fd int) {
	var count uint64
	syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
}

// Word gives the futex call the plain form of an atomic word.
func Word(w *atomic.Uint32) *uint32 { return (*uint32)(unsafe.Pointer(w)) }
