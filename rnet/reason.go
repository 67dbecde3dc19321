package rnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// because gives an error of packages rcm and verbs, met on a transport, its
// reason.
func because(t fallback.Transport, err error) error {
	var rejected *rcm.RejectedError
	var call *os.SyscallError
	var errno syscall.Errno
	switch {
	case err == nil:
		return nil
	case t == fallback.RDMA && errors.As(err, &errno) && deviceReasons[errno] != fallback.None:
		return becauseOfDevice(deviceReasons[errno], err)
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

// deviceReasons are the reasons by what an errno of a kernel device may come from: a
// limit, a permission, or that the device was not given to this container.
var deviceReasons = map[syscall.Errno]fallback.Reason{
	syscall.EAGAIN: fallback.Admission,
	syscall.ENOMEM: fallback.NoMemory,
	syscall.EACCES: fallback.Permission,
	syscall.EPERM:  fallback.Permission,
	syscall.ENOENT: fallback.NoDevice,
}

// limitReasons are the reasons where the device's provider knows better.
var limitReasons = map[verbs.Limit]fallback.Reason{
	verbs.LimitCgroup:     fallback.Cgroup,
	verbs.LimitMemlock:    fallback.Memlock,
	verbs.LimitPermission: fallback.Permission,
	verbs.LimitMissing:    fallback.NoDevice,
}

// becauseOfDevice gives an error of a kernel device its reason, and what lifts the limit.
func becauseOfDevice(reason fallback.Reason, err error) error {
	var failed *verbs.Error
	if errors.As(err, &failed) {
		if limit, remedy := failed.Explain(); limit != verbs.LimitUnknown {
			err = fmt.Errorf("%w (%s)", err, remedy)
			reason = limitReasons[limit]
		}
	}
	return fallback.Because(reason, err)
}
