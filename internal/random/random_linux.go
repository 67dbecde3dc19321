package random

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// atOnce is up to how many bytes come whole, and without a signal's end, once the system
// has any (getrandom(2)).
const atOnce = 256

// fromSystem fills b by the system call. It reports false if that is not possible.
// unix.Getrandom would not do: it draws in the process where that is possible.
func fromSystem(b []byte) bool {
	if len(b) == 0 || len(b) > atOnce {
		return false
	}
	for {
		n, _, errno := unix.Syscall(unix.SYS_GETRANDOM, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
		if errno != unix.EINTR {
			return errno == 0 && int(n) == len(b)
		}
	}
}
