package rnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// because gives an error of packages rcm and verbs, met on a transport, its
// reason.
func because(t fallback.Transport, err error) error {
	var rejected *rcm.RejectedError
	var call *os.SyscallError
	switch {
	case err == nil:
		return nil
	case t == fallback.RDMA && limited(err):
		return becauseOfLimit(err)
	case errors.Is(err, verbs.ErrPinLimit):
		return fallback.Because(fallback.PinLimit, err)
	case errors.Is(err, verbs.ErrNoDevice):
		return fallback.Because(fallback.NoDevice, err)
	case errors.As(err, &call) && call.Syscall == "memfd_create" && forbidden(call.Err):
		return fallback.Because(fallback.MemfdForbidden, err)
	case t == fallback.Soft && errors.As(err, &call) && forbidden(call.Err):
		return fallback.Because(fallback.Permission, err)
	case t == fallback.Soft && errors.Is(err, rcm.ErrPeerDenied) && procIsMissing():
		err = fmt.Errorf("%w (users are told apart with the help of /proc, which is not mounted)", err)
		return fallback.Because(fallback.Permission, err)
	case errors.Is(err, errors.ErrUnsupported):
		return fallback.Because(fallback.UnsupportedOS, err)
	case errors.Is(err, rcm.ErrNoListener):
		return fallback.Because(fallback.NoListener, err)
	case errors.Is(err, rcm.ErrPeerDenied):
		return fallback.Because(fallback.PeerDenied, err)
	case errors.Is(err, rcm.ErrBusy):
		return fallback.Because(fallback.Admission, err)
	case t == fallback.Soft && (errors.Is(err, rcm.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)):
		return fallback.Because(fallback.HandshakeTimeout, lateError{err})
	case errors.Is(err, rcm.ErrTimeout):
		return fallback.Because(fallback.HandshakeTimeout, err)
	case errors.Is(err, rcm.ErrMalformed):
		return fallback.Because(fallback.HandshakeGarbage, err)
	case errors.As(err, &rejected) && rejected.Reason == rcm.ReasonInvalidVersion:
		return fallback.Because(fallback.VersionMismatch, err)
	case errors.As(err, &rejected):
		return fallback.Because(fallback.PeerRejected, err)
	case errors.Is(err, rcm.ErrNoRoute) && t == fallback.RDMA:
		return fallback.Because(fallback.NoDevice, err)
	case errors.Is(err, rcm.ErrDirectory):
		return fallback.Because(fallback.Directory, err)
	case errors.Is(err, rcm.ErrNoRoute):
		return fallback.Because(fallback.NotLocal, err)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, rcm.ErrDisconnected):
		return fallback.Because(fallback.PeerDied, err)
	}
	return err
}

// forbidden reports whether a sandbox may have answered err to a system call.
func forbidden(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOSYS)
}

// limited reports whether an error of a kernel device may come from what an
// administrator has set: a limit, a permission, or that the device was not
// given to this container.
func limited(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EACCES, syscall.EPERM, syscall.ENOENT:
		return true
	}
	return false
}

// becauseOfLimit says which limit it is, and what lifts it.
func becauseOfLimit(err error) error {
	f := rdmahost.Failure{Op: "open", Err: err}
	var op *verbs.Error
	if errors.As(err, &op) {
		f.Op, f.Device = op.Op, op.Device
	}
	var path *fs.PathError // of rdma_cm's node, or in sysfs; what else fails there package rcm explains itself
	text := ""
	if op != nil || errors.As(err, &path) && strings.HasPrefix(path.Path, "/dev/") {
		text = rdmahost.Explain(f)
	}
	if text != "" {
		err = fmt.Errorf("%w (%s)", err, text)
	}
	switch {
	case errors.Is(err, syscall.EAGAIN) && text != "":
		return fallback.Because(fallback.Cgroup, err)
	case errors.Is(err, syscall.ENOMEM) && text != "":
		return fallback.Because(fallback.Memlock, err)
	case errors.Is(err, syscall.ENOMEM):
		return fallback.Because(fallback.NoMemory, err)
	case errors.Is(err, syscall.EAGAIN):
		return fallback.Because(fallback.Admission, err)
	case errors.Is(err, syscall.ENOENT):
		return fallback.Because(fallback.NoDevice, err)
	}
	return fallback.Because(fallback.Permission, err)
}
