package wait

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// currentCPU returns the CPU that the caller runs on, -1 if unknown. It costs
// a tenth of a microsecond and may be out of date when it returns.
func currentCPU() int {
	var cpu uint32
	if _, _, errno := syscall.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return -1
	}
	return int(cpu)
}

// yieldCPU lets other threads of this CPU run. It never blocks, and does not
// tell Go's scheduler.
func yieldCPU() { syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
