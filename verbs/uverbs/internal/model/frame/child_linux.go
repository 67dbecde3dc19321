//go:build amd64 || arm64

package frame

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childName is argument 0 of this program's second copy, which becomes the program
// to run. Its descriptor childFD is the socket to the first copy.
const (
	childName = "model-child"
	childFD   = 3
)

// Main must be the first call of main, or of TestMain, in a program that starts
// programs on a [Host]: it returns unless the process is to become one of them.
func Main() {
	if os.Args[0] != childName {
		return
	}
	err := becomeProgram(os.Args[1:])
	fmt.Fprintf(os.Stderr, "model: %v\n", err)
	os.Exit(127)
}

// becomeProgram installs the filter, sends its listener to the parent, and executes
// the program. It returns if that fails.
func becomeProgram(args []string) error {
	// The filter is the thread's, and execve keeps that of the calling one.
	runtime.LockOSThread()
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	// What nobody answers any more is of no use.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_PDEATHSIG): %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
	}
	instructions := filter()
	program := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	// A signal must not interrupt a call whose command has been carried out, or it
	// would be carried out again (kernels from 5.19 on).
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	fd, errno := setFilter(flags|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program)
	if errno == unix.EINVAL {
		fd, errno = setFilter(flags, &program)
	}
	if errno != 0 {
		return fmt.Errorf("seccomp with user notification: %w", errno)
	}
	if err := unix.Sendmsg(childFD, []byte{1}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	unix.CloseOnExec(fd)
	unix.CloseOnExec(childFD)
	return fmt.Errorf("%s: %w", path, unix.Exec(path, args, os.Environ()))
}

// Supported returns why programs cannot be run on hosts here, for instance in an emulator
// of one process.
func Supported() error {
	const getNotifSizes = 3
	var sizes [3]uint16
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, getNotifSizes, 0, uintptr(unsafe.Pointer(&sizes))); errno != 0 {
		return fmt.Errorf("seccomp with user notification: %w", errno)
	}
	if err := Self().Read(uint64(uintptr(unsafe.Pointer(&sizes))), make([]byte, 1)); err != nil {
		return err
	}
	return nil
}

func setFilter(flags uintptr, program *unix.SockFprog) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(program)))
	return int(fd), errno
}

// receiveListener waits for what becomeProgram sends.
func receiveListener(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, err
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) != 1 {
			return -1, errors.New("the program was not started")
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return -1, err
		}
		return fds[0], nil
	}
}
