package verbs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorsNameOperationDeviceCauseAndHint(t *testing.T) {
	c := &Context{attr: DeviceAttr{DeviceInfo: DeviceInfo{Name: "rxe0"}}}
	for _, test := range []struct {
		op   string
		err  error
		want string
	}{
		{"create QP", fmt.Errorf("%w: QP type 9", ErrInvalid), "verbs: create QP on rxe0: invalid argument: QP type 9"},
		{"register MR", fmt.Errorf("%w: 5 of 4", ErrPinLimit),
			"verbs: register MR on rxe0: cap on pinned memory reached: 5 of 4 (raise it with verbs.SetPinLimit, or close connections)"},
		{"register MR", os.NewSyscallError("ioctl", syscall.ENOMEM),
			"verbs: register MR on rxe0: ioctl: cannot allocate memory (raise RLIMIT_MEMLOCK (ulimit -l) or the memory limit of the cgroup)"},
		{"create CQ", syscall.ENOMEM,
			"verbs: create CQ on rxe0: cannot allocate memory (raise the memory limit of the cgroup, or make smaller queues)"},
		{"create QP", syscall.EAGAIN, "verbs: create QP on rxe0: resource temporarily unavailable (raise rdma.max of the cgroup)"},
		{"create CQ", syscall.EMFILE, "verbs: create CQ on rxe0: too many open files (raise RLIMIT_NOFILE (ulimit -n))"},
		{"close", errors.New("went away"), "verbs: close on rxe0: went away"},
	} {
		err := c.wrap(test.op, test.err)
		require.EqualError(t, err, test.want)
		require.ErrorIs(t, err, test.err)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, test.op, e.Op)
		require.Equal(t, "rxe0", e.Device)
	}
	require.NoError(t, c.wrap("close", nil))
}

func TestHintsAreGivenWhereTheUserCanAct(t *testing.T) {
	for _, with := range []error{syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM, ErrPinLimit} {
		require.NotEmpty(t, hintFor("open", fmt.Errorf("open: %w", with)), with)
	}
	require.Contains(t, hintFor("register MR", syscall.EPERM), "RLIMIT_MEMLOCK", "which is 0")
	require.Contains(t, hintFor("create QP", syscall.EACCES), "changes its user")
	require.NotContains(t, hintFor("modify QP", syscall.EPERM), "changes its user", "it lacks CAP_NET_RAW for a QKey")
	for _, without := range []error{ErrInvalid, ErrQueueFull, ErrBusy, ErrClosed, syscall.EINVAL} {
		require.Empty(t, hintFor("open", without), without)
	}
}

func TestUnsupportedIsWhatTheStandardLibraryCallsIt(t *testing.T) {
	require.ErrorIs(t, ErrUnsupported, errors.ErrUnsupported)
	require.ErrorIs(t, syscall.EOPNOTSUPP, ErrUnsupported, "what a kernel answers is the same error")
}
