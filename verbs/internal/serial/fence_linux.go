package serial

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The commands of membarrier(2) (linux/membarrier.h), from Linux 4.14 on.
const (
	privateExpedited         = 1 << 3
	registerPrivateExpedited = 1 << 4
)

// canFence reports whether the kernel does it. It registers the process, once.
var canFence = sync.OnceValue(func() bool {
	// It waits for a grace period of RCU, milliseconds.
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, registerPrivateExpedited, 0, 0)
	return errno == 0 && membarrier(privateExpedited) == 0
})

// fence is a fence in all threads of the process that run. It takes some microseconds.
func fence() {
	if errno := membarrier(privateExpedited); errno != 0 {
		// It has worked before: the process has taken the system call away from itself.
		panic("verbs: membarrier: " + errno.Error() + "; queues that are SingleThreaded need it")
	}
}

func membarrier(command uintptr) syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, command, 0, 0)
	return errno
}
