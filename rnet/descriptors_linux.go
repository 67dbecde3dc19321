package rnet

import (
	"errors"
	"io/fs"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
)

// pairDescriptors is how many descriptors two QPs of the software HCA take to
// be paired after all else is there: the socket of the pair, the peer's segment
// and wake-up socket, and its receive ring.
const pairDescriptors = 4

// checkPairing fails if the descriptors are not left with which a session over the
// software HCA comes about, or a system call is forbidden. Its QPs are paired in the
// background, where that would show as a peer that does not answer.
func checkPairing(t fallback.Transport) error {
	if t != fallback.Soft {
		return nil
	}
	var fds [pairDescriptors]int
	var err error
	n := 0
	if fds[0], err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	// A sandbox may forbid what the peer's memory is looked at with. That would show
	// in the background too.
	var about unix.Statfs_t
	if err := unix.Fstatfs(fds[0], &about); err != nil {
		unix.Close(fds[0])
		return os.NewSyscallError("fstatfs", err)
	}
	for n = 1; n < len(fds); n++ {
		if fds[n], err = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			err = os.NewSyscallError("dup", err)
			break
		}
	}
	for _, fd := range fds[:n] {
		unix.Close(fd)
	}
	return err
}

// descriptorLimit is how many descriptors the process may have.
func descriptorLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(limit.Cur, math.MaxInt32))
}

// procIsMissing reports whether users cannot be told apart for want of /proc.
func procIsMissing() bool { return errors.Is(samehost.CheckUser(), fs.ErrNotExist) }
