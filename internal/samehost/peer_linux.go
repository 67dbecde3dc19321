package samehost

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a connection, as the kernel had it when it
// connected or began to listen: a process that gives its sockets away, or changes its
// user afterwards, is counted by what it was then. The numbers are those of our
// namespaces; PID is 0 for a process that ours does not see.
type Peer struct {
	PID      int
	UID, GID uint32
}

// SameUser reports whether the peer is certainly of our effective user.
func (p Peer) SameUser() bool { return p.UID == uint32(os.Geteuid()) && CheckUser() == nil }

// ErrUnknownUser is a process that runs as a user who looks like others.
var ErrUnknownUser = errors.New("the kernel does not tell this user from others in this user namespace")

// CheckUser returns nil if SO_PEERCRED tells our effective user from all others, and
// otherwise an error that wraps ErrUnknownUser. It asks the kernel each time: users
// change, and so does the overflow user.
func CheckUser() error {
	overflow, err := readOverflowUID()
	if err == nil && overflow != os.Geteuid() {
		return nil
	}
	// A user namespace with a number for everybody has no use for the overflow user.
	if text, mapErr := os.ReadFile("/proc/self/uid_map"); mapErr == nil && mapsAllUsers(string(text)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnknownUser, err)
	}
	return fmt.Errorf("%w: user %d stands for all whom it has no number for", ErrUnknownUser, overflow)
}

func readOverflowUID() (int, error) {
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// mapsAllUsers reports whether a uid_map has a number for each user, as that of the
// first user namespace has.
func mapsAllUsers(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}

func peerOf(fd int) (Peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, nil
}
