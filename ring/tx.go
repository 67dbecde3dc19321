package ring

import (
	"errors"
	"fmt"
)

const (
	// Align is the boundary in bytes at which messages start; their lengths
	// are rounded up to it.
	Align = 16
	// MinSize and MaxSize bound the size of a ring in bytes.
	MinSize = 4096
	MaxSize = 1 << 30
)

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

// Tx is the sender's twin of the peer's receive ring: it knows what was sent
// and what of it the peer has released. The zero Tx has no room until Init.
type Tx struct {
	sent  uint64 // position after the last reservation, multiple of Align
	acked uint64 // released by the peer as far as we know, sent-size <= acked <= sent
	base  uint64 // position of the last Restart: it lies at offset 0
	size  uint64
}

// Init makes t the twin of an empty ring of size bytes, a power of two from
// MinSize to MaxSize.
func (t *Tx) Init(size uint32) error {
	if err := checkSize(size); err != nil {
		return err
	}
	*t = Tx{size: uint64(size)}
	return nil
}

// Reserve claims n contiguous bytes and returns the offset at which they
// start. If they do not fit before the end of the ring, the rest is skipped
// and they start at offset 0. It returns false, and claims nothing, if there is
// no room now or n is not positive.
func (t *Tx) Reserve(n int) (off uint32, ok bool) {
	start, end := place(t.sent, t.base, t.size, n)
	if n <= 0 || uint64(n) > t.size || end-t.acked > t.size {
		return 0, false
	}
	t.sent = end
	return uint32((start - t.base) & (t.size - 1)), true
}

// Room returns the largest n that Reserve(n) would take now, and 0 if there is
// none: what is free before the end of the ring, or after skipping to its
// start, whichever is larger.
func (t *Tx) Room() int {
	free := t.free()
	rest := t.size - uint64(t.Offset())
	if free <= rest {
		return int(free)
	}
	return int(max(rest, free-rest))
}

// Tail returns the largest n that Reserve(n) would take now without skipping
// the end of the ring. A sender that can choose its lengths shortens a message
// to Tail instead of wasting the end.
func (t *Tx) Tail() int {
	return int(min(t.free(), t.size-uint64(t.Offset())))
}

// Offset returns where the next message starts if it fits before the end of the
// ring.
func (t *Tx) Offset() uint32 { return uint32((t.sent - t.base) & (t.size - 1)) }

// Restart makes the next message start at offset 0, if the peer has released all
// that was sent, and reports whether it does. The peer has to be told, with that
// message: it calls Rx.Restart before it places it. So a ring that is seldom full
// uses only its beginning.
func (t *Tx) Restart() bool {
	if t.sent != t.acked {
		return false
	}
	t.base = t.sent
	return true
}

// Size returns the size of the ring in bytes.
func (t *Tx) Size() uint32 { return uint32(t.size) }

// Sent returns the position after the last reservation, skipped bytes
// included.
func (t *Tx) Sent() uint64 { return t.sent }

// Acked returns the position up to which the peer has released the ring, as
// far as it told us.
func (t *Tx) Acked() uint64 { return t.acked }

// Credit takes the position up to which the peer has released its ring. A
// stale one is ignored. One beyond Sent, or not at a multiple of Align, is ErrCredit.
func (t *Tx) Credit(pos uint64) error {
	if pos <= t.acked {
		return nil
	}
	if pos > t.sent || pos%Align != 0 {
		return t.lie(pos)
	}
	t.acked = pos
	return nil
}

func (t *Tx) lie(pos uint64) error {
	return fmt.Errorf("%w: position %d released, %d sent", ErrCredit, pos, t.sent)
}

// Credit32 is Credit for the low 32 bits of the position, as frame headers
// carry them. A position up to 2 GiB behind counts as stale.
func (t *Tx) Credit32(low uint32) error {
	ahead := int32(low - uint32(t.acked))
	if ahead <= 0 {
		return nil
	}
	return t.Credit(t.acked + uint64(ahead))
}

func (t *Tx) free() uint64 { return t.size - (t.sent - t.acked) }

// place is the rule that both sides share: where a message of n bytes lies
// when everything before pos is taken and base lies at offset 0. The caller checks
// 0 < n <= size.
func place(pos, base, size uint64, n int) (start, end uint64) {
	length := roundUp(n)
	rest := size - (pos-base)&(size-1)
	if length > rest {
		pos += rest
	}
	return pos, pos + length
}

func roundUp(n int) uint64 { return (uint64(n) + Align - 1) &^ (Align - 1) }

func checkSize(size uint32) error {
	if size < MinSize || size > MaxSize || size&(size-1) != 0 {
		return fmt.Errorf("%w: ring of %d bytes, want a power of two from %d to %d", ErrSize, size, MinSize, MaxSize)
	}
	return nil
}
