package serial

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The commands of membarrier(2) (linux/membarrier.h), from Linux 4.14 on.
const (
	privateExpedited         = 1 << 3
	registerPrivateExpedited = 1 << 4
)

// registerFence reports whether the kernel does it, for which it registers the process.
func registerFence() bool {
	// It waits for a grace period of RCU: 4 to 26 ms.
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, registerPrivateExpedited, 0, 0)
	return errno == 0 && membarrier(privateExpedited) == 0
}

// fence is a fence in all threads of the process that run. It takes some microseconds.
//
// A process may have taken the system call away from itself since it was registered, as by a
// seccomp filter. Then fence sleeps. A store waits in its processor's buffer until the cache line
// is there, less than a microsecond, and leaves it whether its thread goes on or not; that a
// thread has looked at wanted before the sleep, and its store to inside is not seen after it, is
// not ruled out by the manuals of processors, but by their time.
func fence() {
	if membarrier(privateExpedited) != 0 {
		time.Sleep(storesLeave)
	}
}

// storesLeave is a thousand times as long as it takes stores to leave a processor.
const storesLeave = 2 * time.Millisecond

// membarrier is a variable for tests, in which it fails.
var membarrier = func(command uintptr) syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, command, 0, 0)
	return errno
}
