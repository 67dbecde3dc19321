package ring

import "fmt"

// MaxSlots is the largest number of receives that may be outstanding. It is a
// quarter of what 16 bits count, so that Credit16 can tell a stale count from a
// new one.
const MaxSlots = 1 << 14

// SendSlots counts the receives that the peer has posted for our messages. A
// message without one would meet RNR, so none is sent. The zero SendSlots has
// none until Init.
type SendSlots struct {
	sent   uint64
	posted uint64 // sent <= posted <= sent+depth
	depth  uint64
}

// Init starts with depth receives posted by the peer, 1 to MaxSlots.
func (s *SendSlots) Init(depth int) error {
	if depth < 1 || depth > MaxSlots {
		return fmt.Errorf("%w: %d receives, want 1 to %d", ErrSize, depth, MaxSlots)
	}
	*s = SendSlots{posted: uint64(depth), depth: uint64(depth)}
	return nil
}

// Avail returns how many messages may be sent now.
func (s *SendSlots) Avail() int { return int(s.posted - s.sent) }

// Take counts one message as sent. Without an available slot it is a bug of the
// caller and panics.
func (s *SendSlots) Take() {
	if s.posted == s.sent {
		panic("ring: Take without a slot")
	}
	s.sent++
}

// Credit takes the number of receives that the peer has posted since the
// beginning. A stale one is ignored; more than were ever used up is ErrCredit.
func (s *SendSlots) Credit(posted uint64) error {
	if posted <= s.posted {
		return nil
	}
	if posted-s.sent > s.depth {
		return s.lie(posted)
	}
	s.posted = posted
	return nil
}

func (s *SendSlots) lie(posted uint64) error {
	return fmt.Errorf("%w: %d receives posted, %d sent, depth %d", ErrCredit, posted, s.sent, s.depth)
}

// Credit16 is Credit for the low 16 bits of the count, as frame headers carry
// them. A count up to 32768 behind is stale.
func (s *SendSlots) Credit16(low uint16) error {
	ahead := int16(low - uint16(s.posted))
	if ahead <= 0 {
		return nil
	}
	return s.Credit(s.posted + uint64(ahead))
}

// Sent returns the number of messages sent so far.
func (s *SendSlots) Sent() uint64 { return s.sent }

// RecvSlots counts the receives that we have posted and what the peer knows of
// them.
type RecvSlots struct {
	posted uint64
	told   uint64
	step   uint64
}

// Init starts with depth receives posted, 1 to MaxSlots, which the peer knows
// of.
func (r *RecvSlots) Init(depth int) error {
	if depth < 1 || depth > MaxSlots {
		return fmt.Errorf("%w: %d receives, want 1 to %d", ErrSize, depth, MaxSlots)
	}
	d := uint64(depth)
	*r = RecvSlots{posted: d, told: d, step: max(1, d/4)}
	return nil
}

// Post counts n receives as posted again, each in the place of one that a
// message has used up.
func (r *RecvSlots) Post(n int) { r.posted += uint64(n) }

// Posted returns the number of receives posted since the beginning.
func (r *RecvSlots) Posted() uint64 { return r.posted }

// Untold returns how many receives were posted since the last TakeCredit.
func (r *RecvSlots) Untold() int { return int(r.posted - r.told) }

// CreditDue reports whether a quarter of the receives was posted again since
// the last TakeCredit, so that the peer should be told even if there is nothing
// else to send.
func (r *RecvSlots) CreditDue() bool { return r.posted-r.told >= r.step }

// TakeCredit returns Posted, to be sent to the peer, and remembers it as told.
// Its low 16 bits are enough for SendSlots.Credit16.
func (r *RecvSlots) TakeCredit() uint64 {
	r.told = r.posted
	return r.told
}
