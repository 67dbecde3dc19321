package wait

import (
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	if others.Count() == 0 {
		return false
	}
	return moveThread(&others, &allowed)
}

// joinCPU moves the thread to that CPU, and reports whether it may run there.
func joinCPU(cpu int) bool {
	runtime.LockOSThread() // as leaveCPU
	defer runtime.UnlockOSThread()
	var allowed, one unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil || !allowed.IsSet(cpu) {
		return false
	}
	one.Set(cpu)
	return moveThread(&one, &allowed)
}

// moveThread moves the thread, which is locked, to one of these CPUs. Then it may run where it could before.
func moveThread(to, allowed *unix.CPUSet) bool {
	if unix.SchedSetaffinity(0, to) != nil {
		return false
	}
	// A thread that nobody has restricted gets all CPUs back, also those that its cpuset does not have yet.
	var all, now unix.CPUSet
	for i := range all {
		all[i]--
	}
	if unix.SchedSetaffinity(0, &all) == nil && unix.SchedGetaffinity(0, &now) == nil && now == *allowed {
		return true
	}
	return unix.SchedSetaffinity(0, allowed) == nil
}

// threadDelays is for how long threads were runnable and had no CPU, as /proc/thread-self/schedstat says.
// Of threads with the same remainder only the last one is known.
type threadDelays [8]struct {
	thread int
	at     time.Duration
	delay  time.Duration
}

// since returns the delay of the calling thread since the last call for it, 0 if there was none, or if that is
// less than an eighth of the time until t.
func (d *threadDelays) since(t time.Duration) time.Duration {
	runtime.LockOSThread() // the file is of the thread that opens it
	defer runtime.UnlockOSThread()
	fd, err := unix.Open("/proc/thread-self/schedstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return 0
	}
	// ns on a CPU, ns runnable without one, slices
	fields := strings.Fields(string(b[:n]))
	if len(fields) < 2 {
		return 0
	}
	ns, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	thread := unix.Gettid()
	last := &d[thread%len(d)]
	before := *last
	last.thread, last.at, last.delay = thread, t, time.Duration(ns)
	if before.thread != thread || last.delay-before.delay < (t-before.at)/8 {
		return 0
	}
	return last.delay - before.delay
}
