package rnet

import (
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// forbid lets the system calls of a number fail for all threads of this process.
func forbid(number uint32, with unix.Errno) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const nr = 0 // offset of seccomp_data.nr
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(with)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}

// The reason of a dial in a sandbox is the true one, and it is found before anybody is
// waited for: with a head start without end a dial that is not would hang. Nor is the
// listener asked for a session, unless it takes its answer to find out.
func TestSandboxShowsInTheReason(t *testing.T) {
	for name, c := range map[string]struct {
		role, argument string
		want           []string // the type, the reason, and what is said
		asked          uint64   // how often the listener is, at the most
	}{
		"without fstatfs":        {"withoutcall", fmt.Sprint(unix.SYS_FSTATFS), []string{"*net.TCPConn", "permission", "fstatfs", "sandbox"}, 0},
		"without recvmsg":        {"withoutcall", fmt.Sprint(unix.SYS_RECVMSG), []string{"*net.TCPConn", "permission", "recvmsg", "sandbox"}, 1},
		"without memfd_create":   {"withoutcall", fmt.Sprint(unix.SYS_MEMFD_CREATE), []string{"*net.TCPConn", "memfd-forbidden", "memfd_create", "seccomp"}, 0},
		"without /proc":          {"withoutproc", "", []string{"*net.TCPConn", "permission", "/proc", "sandbox"}, 0},
		"with fourteen files":    {"withfiles", "14", []string{"*net.TCPConn", "no-descriptors", "too many open files", "ulimit -n"}, 0},
		"with fifteen files":     {"withfiles", "15", []string{"*net.TCPConn", "no-descriptors", "too many open files", "ulimit -n"}, 0},
		"with sixteen files":     {"withfiles", "16", []string{"*net.TCPConn", "no-descriptors", "too many open files", "ulimit -n"}, 0},
		"with twenty-four files": {"withfiles", "24", []string{"*rnet.Conn"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			ln := carrier{}.listen(t)
			served := hang.Start(t, func() {
				for { // ended by Close
					s, err := ln.Accept()
					if err != nil {
						return
					}
					go func() {
						io.Copy(s, s)
						s.Close()
					}()
				}
			})
			child := roles.StartIfAllowed(t, func(cmd *exec.Cmd) {
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
			}, c.role, ln.Addr().String(), c.argument)
			said := child.Line(t)
			t.Log(said)
			for _, want := range c.want {
				require.Contains(t, said, want)
			}
			child.Stop()
			require.LessOrEqual(t, ln.(*Listener).onFabrics()[0].Stats().Requests, c.asked)
			ln.Close()
			served()
		})
	}
}

func init() {
	roles.Add("withoutcall", func(args []string) error {
		var number uint32
		if _, err := fmt.Sscan(args[1], &number); err != nil {
			return err
		}
		if err := forbid(number, unix.EPERM); err != nil {
			return err
		}
		return dialAndExplain(args[0])
	})
	roles.Add("withoutproc", func(args []string) error {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Unmount("/proc", unix.MNT_DETACH); err != nil {
			return err
		}
		return dialAndExplain(args[0])
	})
	roles.Add("withfiles", func(args []string) error {
		var limit uint64
		if _, err := fmt.Sscan(args[1], &limit); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
		return dialAndExplain(args[0])
	})
}

// dialAndExplain dials, uses the connection, and says what it is and why.
func dialAndExplain(address string) error {
	c, err := (&Dialer{HeadStart: time.Hour}).Dial("tcp", address)
	if err != nil {
		return err
	}
	if err := useEcho(c); err != nil {
		return err
	}
	told := Explain(address)
	last := told[len(told)-1]
	fmt.Println(typeName(c), last.Reason, last.Err, last.Remedy, last.Took)
	return c.Close()
}
