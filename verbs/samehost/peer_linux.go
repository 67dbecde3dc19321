package samehost

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

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

// IsUser reports whether the peer is certainly of a user of our user namespace.
func (p Peer) IsUser(uid uint32) bool {
	return p.UID == uid && (uid == uint32(os.Geteuid()) || checkUser(int(uid)) == nil) && CheckUser() == nil
}

// ErrUnknownUser is a process that runs as a user who looks like others.
var ErrUnknownUser = errors.New("the kernel does not tell this user from others in this user namespace")

// CheckUser returns nil if SO_PEERCRED tells our effective user from all others, and
// otherwise an error that wraps ErrUnknownUser. It asks the kernel each time: users
// change, and so does the overflow user.
func CheckUser() error { return checkUser(os.Geteuid()) }

func checkUser(uid int) error {
	overflow, err := overflowUser()
	if err == nil && overflow != uid {
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

// lastOverflow is one more than what overflowUser has found last, 0 before it has.
var lastOverflow atomic.Int64

// overflowUser asks for the overflow user. What it has found before stands in when it
// finds no descriptor for that: sockets ask before they take one of their own.
func overflowUser() (int, error) {
	uid := int64(0)
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err == nil {
		uid, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	if err == nil {
		lastOverflow.Store(uid + 1)
		return int(uid), nil
	}
	if last := lastOverflow.Load(); last != 0 {
		return int(last - 1), nil
	}
	return 0, err
}

// mapsAllUsers reports whether a uid_map has a number for each user, as that of the
// first user namespace has.
func mapsAllUsers(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}

// PeerOf returns who is at the other end of a Unix socket that is connected. Of one that
// listens it returns who called listen last.
func PeerOf(fd int) (Peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, nil
}

// IsUnix reports whether fd, which a peer may have sent, is a Unix socket of a type. It asks nothing
// that waits: the lock of a socket of another kind can be held by whoever sent it.
func IsUnix(fd, typ int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return false
	}
	is, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	return err == nil && is == typ
}
