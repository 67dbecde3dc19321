package rcm

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Errors that calls of this package wrap.
var (
	// ErrNoRoute: no device of the fabric reaches the address.
	ErrNoRoute = errors.New("no device reaches the address")
	// ErrOtherDevice is an ErrNoRoute: the address is reached over a device
	// that the fabric is not to use.
	ErrOtherDevice = fmt.Errorf("%w over a device that may be used", ErrNoRoute)
	// ErrDirectory is an ErrNoRoute: the address may be that of a process of this host,
	// but the directory in which such processes meet has not led to it.
	ErrDirectory = fmt.Errorf("%w by the directory", ErrNoRoute)
	// ErrNoListener: the address can be reached, but nobody there takes
	// requests. errors.Is finds syscall.ECONNREFUSED in it.
	ErrNoListener error = &refusedError{"nobody listens"}
	// ErrPeerDenied: one side's policy does not trust the other's process.
	ErrPeerDenied = errors.New("peer denied by policy")
	// ErrBusy: the listener has more requests than it takes.
	ErrBusy = errors.New("listener is overloaded")
	// ErrTimeout: the peer did not answer in time. It is a net.Error whose
	// Timeout is true, and errors.Is finds os.ErrDeadlineExceeded in it.
	ErrTimeout error = &timeoutError{}
	// ErrDisconnected: the peer disconnected in good order.
	ErrDisconnected = errors.New("peer disconnected")
	// ErrDeviceRemoved: the device was unplugged or its link deleted.
	ErrDeviceRemoved = errors.New("device was removed")
	// ErrMalformed: the peer broke the protocol.
	ErrMalformed = errors.New("malformed message")
)

// Reasons of a reject, numbered as in the InfiniBand Architecture
// Specification, section 12.6.7.2 (enum ib_cm_rej_reason, rdma/ib_cm.h of the
// kernel). Those from 256 on are our own.
const (
	ReasonNoResources    = 3   // the listener's backlog is full
	ReasonTimeout        = 4   // the acceptor waited too long for the peer
	ReasonInvalidService = 8   // nobody listens, or no more
	ReasonConsumer       = 28  // Request.Reject was called
	ReasonInvalidVersion = 31  // the acceptor does not speak this version
	ReasonPeerDenied     = 256 // the acceptor's policy refuses this process
)

// RejectedError is a peer's refusal of a request to connect. By its reason, errors.Is finds
// ErrNoListener, ErrPeerDenied, ErrBusy or ErrTimeout in it.
type RejectedError struct {
	// PrivateData is what the peer gave to Request.Reject.
	PrivateData []byte
	// Reason is one of the Reason constants, or another code of the
	// specification on kernel devices.
	Reason int
}

// Error names the reason.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("rejected by peer: %s", reasonText(e.Reason))
}

// Is reports whether the reason means target: ErrNoListener, ErrPeerDenied,
// ErrBusy, ErrTimeout, or syscall.ECONNREFUSED, which every reject is.
func (e *RejectedError) Is(target error) bool {
	switch target {
	case syscall.ECONNREFUSED:
		return true
	case ErrNoListener:
		return e.Reason == ReasonInvalidService
	case ErrPeerDenied:
		return e.Reason == ReasonPeerDenied
	case ErrBusy:
		return e.Reason == ReasonNoResources
	case ErrTimeout:
		return e.Reason == ReasonTimeout
	}
	return false
}

func reasonText(reason int) string {
	switch reason {
	case ReasonNoResources:
		return "backlog is full"
	case ReasonTimeout:
		return "handshake timed out"
	case ReasonInvalidService:
		return "nobody listens"
	case ReasonConsumer:
		return "refused by the program"
	case ReasonInvalidVersion:
		return "protocol version not supported"
	case ReasonPeerDenied:
		return "denied by policy"
	}
	return fmt.Sprintf("reason %d", reason)
}

type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

func (e *refusedError) Is(target error) bool { return target == syscall.ECONNREFUSED }

type timeoutError struct{}

func (e *timeoutError) Error() string { return "timed out" }

func (e *timeoutError) Timeout() bool { return true }

func (e *timeoutError) Temporary() bool { return true }

func (e *timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }
