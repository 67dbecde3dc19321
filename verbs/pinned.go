package verbs

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
)

var pinned struct {
	bytes atomic.Int64
	limit atomic.Int64
}

// PinnedBytes returns the bytes of all open MRs of this process, but for memory that is paged in on
// demand, that of the device, and DMA buffers.
func PinnedBytes() int64 { return pinned.bytes.Load() }

// SetPinLimit caps the bytes that MRs of this process may pin together; 0
// removes the cap. MRs that exist already stay. It returns the former cap.
func SetPinLimit(bytes int64) int64 { return pinned.limit.Swap(bytes) }

// PinLimit returns the cap set by SetPinLimit, 0 if there is none.
func PinLimit() int64 { return pinned.limit.Load() }

// pin counts n bytes, or none if they do not fit under the cap. A call that
// fails never makes another one fail that would have fitted.
func pin(n int64) error {
	for {
		used, limit := pinned.bytes.Load(), pinned.limit.Load()
		if n > 0 && limit > 0 && n > limit-used {
			return fmt.Errorf("%w: %d bytes wanted, %d of %d in use", ErrPinLimit, n, used, limit)
		}
		if pinned.bytes.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

func unpin(n int64) { pinned.bytes.Add(-n) }

// hintFor says what a user can do about an error of an operation, empty if
// nothing is known.
func hintFor(op string, err error) string {
	switch {
	case errors.Is(err, ErrPinLimit):
		return "raise it with verbs.SetPinLimit, or close connections"
	case errors.Is(err, ErrPoolLimit):
		return "raise it with Pool.SetLimit or SetDeviceLimit, or close what is not used"
	case (errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EPERM)) && strings.HasSuffix(op, " MR"): // EPERM if the limit is 0
		return "raise RLIMIT_MEMLOCK (ulimit -l) or the memory limit of the cgroup"
	case errors.Is(err, syscall.ENOMEM):
		return "raise the memory limit of the cgroup, or make smaller queues"
	case errors.Is(err, syscall.EAGAIN):
		return "raise rdma.max of the cgroup"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise RLIMIT_NOFILE (ulimit -n)"
	case errors.Is(err, syscall.EACCES):
		return "check the permissions of the device file and the sandbox of the process; a process that changes its user after it opened a device loses it"
	case errors.Is(err, syscall.EPERM):
		return "check the capabilities and the sandbox of the process"
	}
	return ""
}
