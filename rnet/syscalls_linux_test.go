package rnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

func init() { roles.Add("countdials", countDials) }

// countedDials is how often each kind of dial is made.
const countedDials = 50

// The dials whose system calls are counted, and those before them that are not.
var countedKinds = []struct {
	name string
	dial func(address string) (net.Conn, error)
}{
	{"not counted", dialRemembering},
	{"package net", func(address string) (net.Conn, error) { return net.Dial("tcp", address) }},
	{"that look", func(address string) (net.Conn, error) {
		negatives.Forget(address)
		return Dial("tcp", address)
	}},
	{"that remember", dialRemembering},
}

// dialRemembering dials with the memory of two dials just before.
func dialRemembering(address string) (net.Conn, error) {
	if _, ok := negatives.Recall(address); !ok {
		return nil, errNothingYet // the caller makes it so
	}
	return Dial("tcp", address)
}

// mark is a system call that does nothing, and tells the tracer what comes.
func mark(what int) { unix.RawSyscall(unix.SYS_PRCTL, markOption, uintptr(what), 0) }

const markOption = 0x7265

// countDials makes dials of each kind, between marks.
func countDials(args []string) error {
	runtime.GOMAXPROCS(1)
	for kind, k := range countedKinds {
		for range countedDials {
			if kind == 0 || kind == 3 {
				for _, ok := negatives.Recall(args[0]); !ok; _, ok = negatives.Recall(args[0]) {
					c, err := Dial("tcp", args[0])
					if err != nil {
						return err
					}
					c.Close()
				}
			}
			mark(kind)
			c, err := k.dial(args[0])
			mark(0)
			if errors.Is(err, errNothingYet) {
				continue // the time of the memory was over
			}
			if err != nil {
				return err
			}
			c.Close()
		}
	}
	return nil
}

// A dial to a plain TCP server costs two system calls more than one of package net,
// and none if that was seen a moment ago.
func TestDialToAPlainServerCostsTwoSystemCalls(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	served := hang.Start(t, func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	})
	done := make(chan []int)
	go func() {
		done <- traceMarked(t, roles.Command(t, "countdials", ln.Addr().String()), len(countedKinds), func(nr uint64) bool { return counted[nr] })
	}()
	counts := <-done
	ln.Close()
	served()
	if counts == nil {
		return
	}
	t.Logf("system calls of %d dials: %d by package net, %d that look, %d that remember", countedDials, counts[1], counts[2], counts[3])
	require.NotZero(t, counts[1])
	const once = countedDials / 2 // a socket to look with, what is read once, signals
	require.LessOrEqual(t, counts[2], counts[1]+2*countedDials+once)
	require.LessOrEqual(t, counts[3], counts[1]+once)
}

// counted are the system calls that dials make. Those of Go's scheduler and memory come
// and go with the load of the machine.
var counted = map[uint64]bool{
	unix.SYS_SOCKET: true, unix.SYS_CONNECT: true, unix.SYS_BIND: true, unix.SYS_CLOSE: true,
	unix.SYS_SETSOCKOPT: true, unix.SYS_GETSOCKOPT: true, unix.SYS_GETSOCKNAME: true, unix.SYS_GETPEERNAME: true,
	unix.SYS_SENDTO: true, unix.SYS_RECVFROM: true, unix.SYS_FCNTL: true, unix.SYS_EPOLL_CTL: true,
	unix.SYS_OPENAT: true, unix.SYS_GETDENTS64: true, unix.SYS_READLINKAT: true,
}

// traceMarked runs a command and counts those system calls of its process that are
// wanted, between marks, by kind. It returns nil if the test cannot go on.
func traceMarked(t *testing.T, cmd *exec.Cmd, kinds int, wanted func(nr uint64) bool) []int {
	runtime.LockOSThread() // who traces is a thread; it ends with the goroutine
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe() // the child lives until it is closed
	if err != nil {
		t.Error(err)
		return nil
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Log("this sandbox does not let processes be traced")
			return nil
		}
		t.Error(err)
		return nil
	}
	child := cmd.Process.Pid
	counts := make([]int, kinds)
	kind, begun := 0, false
	for {
		var status unix.WaitStatus
		const ours = 0x20000000 // __WNOTHREAD: no children that other threads have
		tid, err := unix.Wait4(-1, &status, unix.WALL|ours, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			t.Error(os.NewSyscallError("wait4", err))
			return nil
		case tid == child && (status.Exited() || status.Signaled()):
			if status.ExitStatus() != 0 {
				t.Errorf("the child ended with %v", status)
				return nil
			}
			return counts
		case !status.Stopped():
			continue
		}
		signal := 0
		switch stop := status.StopSignal(); {
		case !begun:
			begun = true
			const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
			if err := unix.PtraceSetOptions(tid, options); err != nil {
				t.Error(err)
				return nil
			}
		case stop == unix.SIGTRAP|0x80:
			if nr, args, entry := syscallOf(tid); !entry {
			} else if nr == unix.SYS_PRCTL && args[0] == markOption {
				kind = int(args[1])
			} else if kind > 0 && wanted(nr) {
				counts[kind]++
			}
		case stop == unix.SIGTRAP, stop == unix.SIGSTOP: // a new thread
		default:
			signal = int(stop)
		}
		if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
			t.Error(os.NewSyscallError("ptrace", err))
			return nil
		}
	}
}

// syscallOf returns the system call at which a thread has stopped, on its way in
// (struct ptrace_syscall_info, linux/ptrace.h).
func syscallOf(tid int) (nr uint64, args [2]uint64, entry bool) {
	const getSyscallInfo = 0x420e
	var info [88]byte
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), uintptr(len(info)), uintptr(unsafe.Pointer(&info[0])), 0, 0)
	if errno != 0 || info[0] != 1 {
		return 0, args, false
	}
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(info[at:]) }
	return word(24), [2]uint64{word(32), word(40)}, true
}

func init() { roles.Add("countmessages", countMessages) }

// The round trips whose system calls are counted, in batches: so many in which both ends poll, and
// so many in which one waits. A batch is short, for whoever is kept from a processor for long is
// right to give it away.
const (
	countedTrips = 4
	busyBatches  = 400
	lateBatches  = 20
)

// countMessages makes round trips between marks. In the first batches both ends are in
// this process, and poll; in the others the answer comes after a pause, from the
// address of the argument.
func countMessages(args []string) error {
	runtime.GOMAXPROCS(1) // the ends run alternately, and the device has the other processor
	host, _, err := net.SplitHostPort(args[0])
	if err != nil {
		return err
	}
	ln, err := (&ListenConfig{Transport: RDMA, Profile: Latency}).Listen(ctxBackground, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer ln.Close()
	go answerLate(ln, 0) // ends with the listener
	kind := 0
	for i, address := range []string{ln.Addr().String(), args[0]} {
		c, err := (&Dialer{Transport: RDMA, Profile: []Profile{Latency, Balanced}[i]}).Dial("tcp", address)
		if err != nil {
			return err
		}
		b := make([]byte, 64)
		for batch := range 1 + []int{busyBatches, lateBatches}[i] {
			if batch > 0 { // what comes before is not counted
				kind++
				mark(kind)
			}
			for range countedTrips {
				if _, err = c.Write(b); err == nil {
					_, err = io.ReadFull(c, b)
				}
				if err != nil {
					return fmt.Errorf("batch %d: %w", batch, err)
				}
			}
			mark(0)
		}
		c.Close()
	}
	return nil
}

// answerLate answers each message of 64 bytes after a pause.
func answerLate(ln net.Listener, pause time.Duration) {
	for {
		c, err := ln.Accept() // ended by the peer, or Close
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b := make([]byte, 64)
			for {
				if _, err := io.ReadFull(c, b); err != nil {
					return
				}
				time.Sleep(pause)
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
	}
}

// Over a device whose doorbell is a store, ends that poll make no system call, and one that sleeps
// a few for each message.
func TestMessagesCostNoSystemCallsWhileBothEndsPoll(t *testing.T) {
	const device = "mlx5_0" // the doorbells of rxe and siw are system calls
	i := slices.IndexFunc(kernelCarriers(), func(k carrier) bool { return k.name == device })
	if i < 0 {
		t.Skip("there is no " + device)
	}
	var cpus unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &cpus))
	if cpus.Count() < 2 {
		t.Skip("who polls and the model need a processor each")
	}
	k := kernelCarriers()[i]
	ln, err := (&ListenConfig{Transport: RDMA}).Listen(ctxBackground, "tcp", k.anyPort())
	require.NoError(t, err)
	defer ln.Close()
	go answerLate(ln, 2*time.Millisecond) // ends with the listener
	// on a machine that is busy the model may not answer in time, and who polls yields or
	// sleeps
	const tries = 100
	none := 0
	for try := 0; none == 0 && try < tries; try++ {
		done := make(chan []int)
		go func() {
			done <- traceMarked(t, roles.Command(t, "countmessages", ln.Addr().String()), 1+busyBatches+lateBatches, ofData)
		}()
		counts := <-done
		if counts == nil {
			return
		}
		busy, late := counts[1:][:busyBatches], counts[1+busyBatches:]
		slices.Sort(busy)
		slices.Sort(late)
		median := float64(late[lateBatches/2]) / countedTrips
		none, _ = slices.BinarySearch(busy, 1)
		t.Logf("both ends poll: no system call in %d of %d batches of %d round trips; one waits: %.1f for each round trip, of its own",
			none, busyBatches, countedTrips, median)
		require.Less(t, late[0], 10*countedTrips)
	}
	require.NotZero(t, none)
}

// ofData leaves out what Go's monitor thread does, collections of garbage, and yields to other
// threads, by who polls for long: on a machine that is busy that may be each time.
func ofData(nr uint64) bool {
	switch nr {
	case unix.SYS_NANOSLEEP, unix.SYS_TGKILL, unix.SYS_RT_SIGRETURN, unix.SYS_MADVISE, unix.SYS_GETPID, unix.SYS_SCHED_YIELD:
		return false
	}
	return true
}
