package rnet

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// pairDescriptors is how many descriptors two QPs of the software HCA take to
// be paired after all else is there: the socket of the pair, the peer's segment
// and bell, and its receive ring.
const pairDescriptors = 4

// checkDescriptors fails if the descriptors are not left with which a session
// over the software HCA comes about. Its QPs are paired in the background, where
// the lack of a descriptor would show as a peer that does not answer.
func checkDescriptors(t fallback.Transport) error {
	if t != fallback.Soft {
		return nil
	}
	var fds [pairDescriptors]int
	var err error
	n := 0
	if fds[0], err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
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
