package fallback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// refusal is an error of another package that says by Is what it is.
type refusal struct{}

func (refusal) Error() string        { return "nobody listens" }
func (refusal) Is(target error) bool { return target == syscall.ECONNREFUSED }

type timeout struct{}

func (timeout) Error() string { return "took too long" }
func (timeout) Timeout() bool { return true }

func TestClassify(t *testing.T) {
	for _, test := range []struct {
		err  error
		want Reason
	}{
		{nil, None},
		{errors.New("anything"), Other},
		{syscall.ECONNREFUSED, NoListener},
		{syscall.ENOENT, NoListener},
		{refusal{}, NoListener},
		{syscall.EMFILE, NoDescriptors},
		{syscall.ENFILE, NoDescriptors},
		{syscall.ENOMEM, NoMemory},
		{syscall.ENOBUFS, NoMemory},
		{syscall.ENOSPC, ShmUnusable},
		{syscall.EPERM, Permission},
		{syscall.EACCES, Permission},
		{os.ErrPermission, Permission},
		{syscall.ENODEV, NoDevice},
		{syscall.EHOSTUNREACH, NotLocal},
		{syscall.ETIMEDOUT, HandshakeTimeout},
		{context.DeadlineExceeded, HandshakeTimeout},
		{os.ErrDeadlineExceeded, HandshakeTimeout},
		{timeout{}, HandshakeTimeout},
		{syscall.EPROTO, HandshakeGarbage},
		{syscall.ECONNRESET, PeerDied},
		{syscall.EPIPE, PeerDied},
		{io.EOF, PeerDied},
		{io.ErrUnexpectedEOF, PeerDied},
		{syscall.EAGAIN, Admission},
		{syscall.ENOSYS, UnsupportedOS},
		{errors.ErrUnsupported, UnsupportedOS},
		{context.Canceled, Other},

		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, NoDescriptors},
		{fmt.Errorf("map the ring: %w", os.NewSyscallError("mmap", syscall.ENOMEM)), NoMemory},
		{errors.Join(errors.New("first"), syscall.ECONNREFUSED), NoListener},

		{Because(MemfdForbidden, syscall.EPERM), MemfdForbidden},
		{fmt.Errorf("dial: %w", Because(Memlock, syscall.ENOMEM)), Memlock},
		{Because(Cgroup, Because(NoMemory, syscall.ENOMEM)), Cgroup},
		{errors.Join(errors.New("first"), Because(PinLimit, errors.New("cap reached"))), PinLimit},
	} {
		require.Equal(t, test.want, Classify(test.err), "%v", test.err)
	}
}

func TestBecauseChangesNothingButTheReason(t *testing.T) {
	err := Because(MemfdForbidden, os.NewSyscallError("memfd_create", syscall.EPERM))
	require.EqualError(t, err, os.NewSyscallError("memfd_create", syscall.EPERM).Error())
	require.ErrorIs(t, err, syscall.EPERM)
	require.NoError(t, Because(Other, nil))
}
