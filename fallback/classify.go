package fallback

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
)

// because is an error whose reason is known.
type because struct {
	reason Reason
	err    error
}

// Because attaches a reason to err, for callers that know better than an errno
// tells: that it was memfd_create that was forbidden, say. The message stays
// that of err, and Classify returns r. Of several in a chain the outermost
// counts. A nil err stays nil.
func Because(r Reason, err error) error {
	if err == nil {
		return nil
	}
	return &because{r, err}
}

func (b *because) Error() string { return b.err.Error() }
func (b *because) Unwrap() error { return b.err }

// errnoReasons says what an errno means when nobody knows better. Order
// matters only for errors that match several.
var errnoReasons = []struct {
	err    error
	reason Reason
}{
	{syscall.ECONNREFUSED, NoListener},
	{syscall.ENOENT, NoListener}, // no such name for a Unix socket
	{syscall.EMFILE, NoDescriptors},
	{syscall.ENFILE, NoDescriptors},
	{syscall.ENOMEM, NoMemory},
	{syscall.ENOBUFS, NoMemory},
	{syscall.ENOSPC, ShmUnusable},
	{syscall.EPERM, Permission},
	{syscall.EACCES, Permission},
	{syscall.ENODEV, NoDevice},
	{syscall.ENXIO, NoDevice},
	{syscall.EADDRNOTAVAIL, NotLocal},
	{syscall.EHOSTUNREACH, NotLocal},
	{syscall.ENETUNREACH, NotLocal},
	{syscall.ETIMEDOUT, HandshakeTimeout},
	{syscall.EPROTO, HandshakeGarbage},
	{syscall.ECONNRESET, PeerDied},
	{syscall.ECONNABORTED, PeerDied},
	{syscall.EPIPE, PeerDied},
	{syscall.EAGAIN, Admission}, // a Unix socket's backlog is full
	{syscall.ENOSYS, UnsupportedOS},
	{syscall.EOPNOTSUPP, UnsupportedOS},
	{errors.ErrUnsupported, UnsupportedOS},
	{context.DeadlineExceeded, HandshakeTimeout},
	{os.ErrDeadlineExceeded, HandshakeTimeout},
	{io.ErrUnexpectedEOF, PeerDied},
	{io.EOF, PeerDied},
	{os.ErrPermission, Permission},
}

// Classify returns the reason for an error of an accelerated dial: the one
// attached with Because, or else what the error wraps: an errno, a deadline,
// the end of a connection. None for nil, Other if nothing is recognised.
func Classify(err error) Reason {
	if err == nil {
		return None
	}
	var b *because
	if errors.As(err, &b) {
		return b.reason
	}
	for i := range errnoReasons {
		if errors.Is(err, errnoReasons[i].err) {
			return errnoReasons[i].reason
		}
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return HandshakeTimeout
	}
	return Other
}
