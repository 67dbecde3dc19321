package verbs

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that calls of this package wrap.
var (
	// ErrUnsupported: the device, the QP type or the provider has no such
	// operation. The capability bits say so before use.
	ErrUnsupported = errors.ErrUnsupported
	// ErrClosed: the object, or the context it belongs to, was closed.
	ErrClosed = errors.New("verbs: object is closed")
	// ErrQueueFull: the send, receive or completion queue has no room. It is
	// back-pressure: nothing was lost, post again after completions came.
	ErrQueueFull = errors.New("verbs: queue is full")
	// ErrInvalid: an argument or attribute is out of range or not allowed in
	// this state.
	ErrInvalid = errors.New("verbs: invalid argument")
	// ErrBusy: the object is still used by another one.
	ErrBusy = errors.New("verbs: object is in use")
	// ErrNoDevice: no device of that name, or none at all.
	ErrNoDevice = errors.New("verbs: no such device")
	// ErrPinLimit: the process's cap on pinned bytes would be exceeded.
	ErrPinLimit = errors.New("verbs: cap on pinned memory reached")
	// ErrPoolLimit: a limit of the Pool would be exceeded.
	ErrPoolLimit = errors.New("verbs: limit of the pool reached")
)

// Error is what failed on which device. It wraps the cause.
type Error struct {
	Op     string // "create QP", "register MR", ...
	Device string
	Err    error
	Hint   string // what the user can do, empty if nothing is known
}

// Error returns op, device, cause and hint in one line.
func (e *Error) Error() string {
	// The sentinels name the package because they are seen alone too.
	cause := strings.TrimPrefix(e.Err.Error(), "verbs: ")
	s := fmt.Sprintf("verbs: %s on %s: %s", e.Op, e.Device, cause)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Limit is what an administrator sets, and what makes operations of a device fail.
type Limit uint8

// The limits.
const (
	LimitUnknown    Limit = iota // none, or nobody knows which
	LimitMemlock                 // RLIMIT_MEMLOCK
	LimitCgroup                  // the rdma control group
	LimitPermission              // permission to use the device
	LimitMissing                 // its kernel module, or its device file, is not there
)

// Explain asks the providers that have the device, all if none has it, which limit made the
// operation fail, and for a sentence that names it and its remedy. Providers look at the limits as
// they are now, by some dozen system calls.
func (e *Error) Explain() (l Limit, remedy string) {
	for _, p := range providersOf(e.Device) {
		if p, explains := p.(ExplainingProvider); explains {
			if l, remedy = p.Explain(e); l != LimitUnknown {
				return l, remedy
			}
		}
	}
	return LimitUnknown, ""
}

// providersOf returns the providers that list a device, all if none does: it may have gone.
func providersOf(device string) []Provider {
	byDevice, _, _ := candidates() // what cannot be listed is nobody's
	var list []Provider
	for _, c := range byDevice[device] {
		list = append(list, c.Provider)
	}
	if len(list) == 0 {
		return orderedProviders()
	}
	return list
}
