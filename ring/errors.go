package ring

import "errors"

// Errors that calls of this package wrap.
var (
	// ErrSize: a ring size, window or number of slots is out of range. When
	// the number came from the peer, the peer is broken.
	ErrSize = errors.New("ring: size out of range")
	// ErrCredit: the peer gave credit for what was never sent, or more than
	// there can be. The connection cannot be trusted any more.
	ErrCredit = errors.New("ring: impossible credit")
	// ErrOverrun: the peer sent more than it had credit for, or a length that
	// no message can have. The connection cannot be trusted any more.
	ErrOverrun = errors.New("ring: data beyond credit")
)
