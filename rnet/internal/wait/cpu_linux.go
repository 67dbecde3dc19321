package wait

import (
	"runtime"
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

// leaveCPU moves the thread to another of the CPUs that it may run on, and reports
// whether there is one. It allows the thread no other for as long as the move takes: so
// an idle CPU is found that the kernel's scheduler leaves idle, which wakes a peer where
// its waker runs, time and again.
func leaveCPU() bool {
	// A thread that Go starts from this one inherits what this one is allowed; it
	// starts none from a locked one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return false
	}
	others := allowed
	others.Clear(currentCPU())
	if others.Count() == 0 || unix.SchedSetaffinity(0, &others) != nil {
		return false
	}
	return unix.SchedSetaffinity(0, &allowed) == nil
}
