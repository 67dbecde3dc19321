package uverbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// errGone is the error of everything on a device that was removed. It wraps
// verbs.ErrClosed.
var errGone = fmt.Errorf("%w: the device was removed", verbs.ErrClosed)

// failed makes an error of what the kernel answered to a named operation.
func (d *device) failed(op string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case unix.EIO:
		if d.isGone() {
			d.lost()
			return fmt.Errorf("%s: %w", op, errGone)
		}
	case unix.EBUSY:
		return fmt.Errorf("%s: %w", op, verbs.ErrBusy)
	case unix.EINVAL:
		return fmt.Errorf("%s: %w: %w", op, verbs.ErrInvalid, errno)
	case unix.EPROTONOSUPPORT, unix.ENOTTY:
		return fmt.Errorf("%s: %w: %w", op, verbs.ErrUnsupported, errno)
	}
	return fmt.Errorf("%s: %w", op, errno)
}

// isGone asks the kernel. EIO is what it answers to everything once it has
// let go of the device (drivers/infiniband/core/rdma_core.c), but a driver may
// have other reasons for it too. The caller makes sure that the descriptor is
// open.
func (d *device) isGone() bool {
	p, err := takePage()
	if err != nil {
		return false
	}
	defer returnPage(p)
	r := request{cmd: cmdQueryDevice, in: bytesOf(&responseOnly{}), out: bytesOf(&queryDeviceOut{})}
	return errors.Is(d.runOn(p, &r), unix.EIO)
}
