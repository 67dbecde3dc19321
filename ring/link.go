package ring

import "fmt"

// CreditReserve is how many credit messages a Link can send after the room for
// ordinary messages is used up.
//
// Two ends that are both full, each waiting for the other's credit, must not
// both be unable to give it. Suppose they were, everything in flight having
// arrived: the last CreditReserve messages of each end are then credit
// messages, sent before it saw any of the other's last ones. Each of them was
// due, that is, told of a quarter of the ring or of the slots that the one
// before had not told of, out of what the other end had sent earlier. That is
// less than four quarters of each: at most six messages.
const CreditReserve = 8

const (
	// MinDepth is the smallest number of receives that a Link works with: a
	// quarter of it is what CreditReserve takes.
	MinDepth = 4 * CreditReserve
	// MaxCreditLen is the largest length in bytes of a credit message.
	MaxCreditLen = 64
)

// LinkConfig holds the sizes that the two ends of a connection agreed on.
type LinkConfig struct {
	TxSize    uint32 // bytes of the peer's ring
	RxSize    uint32 // bytes of our ring
	SendDepth int    // receives that the peer posts, MinDepth to MaxSlots
	RecvDepth int    // receives that we post, MinDepth to MaxSlots
	CreditLen int    // bytes of a credit message, 1 to MaxCreditLen
}

// Link is the flow control of one end of a connection: ring space and slots of
// both directions, and the reserve that keeps credit flowing when both are
// full. Ordinary messages (data, window updates, everything but credit) go
// through Room and Send, credit messages through SendCredit, and the header of
// either carries a Stamp, made just before the message is published.
//
// The duties of the receiving side, without which the other end may wait for
// ever: take and Place what arrives whatever the application does and post its
// receive again; after every Place, not only after Retain, move the oldest
// retained message elsewhere while Rx.SpillDue; send a credit message when
// CreditDue, also after the application has read. Window updates and all other
// messages must not use the reserve.
type Link struct {
	Tx        Tx
	Rx        Rx
	SendSlots SendSlots
	RecvSlots RecvSlots

	creditLen uint64 // rounded up to Align
	keepBytes uint64 // ring bytes that ordinary messages leave free
	keepSlots int    // slots that ordinary messages leave free
}

// Credit is what the header of each message tells the peer: the low bits of
// absolute counts.
type Credit struct {
	Released uint32 // ring position up to which the peer may overwrite
	Posted   uint16 // receives posted since the beginning
}

// Init starts both directions. An error wraps ErrSize.
func (l *Link) Init(c LinkConfig) error {
	*l = Link{}
	if c.CreditLen < 1 || c.CreditLen > MaxCreditLen {
		return fmt.Errorf("%w: credit messages of %d bytes, want 1 to %d", ErrSize, c.CreditLen, MaxCreditLen)
	}
	if min(c.SendDepth, c.RecvDepth) < MinDepth {
		return fmt.Errorf("%w: %d and %d receives, want at least %d", ErrSize, c.SendDepth, c.RecvDepth, MinDepth)
	}
	if err := l.Tx.Init(c.TxSize); err != nil {
		return err
	}
	if err := l.Rx.Init(c.RxSize); err != nil {
		return err
	}
	if err := l.SendSlots.Init(c.SendDepth); err != nil {
		return err
	}
	if err := l.RecvSlots.Init(c.RecvDepth); err != nil {
		return err
	}
	l.keep(c.CreditLen, CreditReserve)
	return nil
}

// keep reserves slots and bytes for n credit messages. They wrap at most once,
// which skips less than the length of one.
func (l *Link) keep(creditLen, n int) {
	l.creditLen = roundUp(creditLen)
	l.keepSlots = n
	l.keepBytes = uint64(n)*l.creditLen + l.creditLen - Align
}

// Room returns the largest n that Send(n) would take now, and 0 if none.
func (l *Link) Room() int {
	if l.SendSlots.Avail() <= l.keepSlots {
		return 0
	}
	return l.Tx.roomBeside(l.keepBytes)
}

// Tail returns the largest n that Send(n) would take now without skipping the
// end of the ring.
func (l *Link) Tail() int { return min(l.Room(), l.Tx.Tail()) }

// MaxMessage returns the length up to which Send finds room in the end,
// wherever the ring stands: somewhat less than an eighth of the ring. A longer
// message may wait for ever for a contiguous piece.
func (l *Link) MaxMessage() int {
	// The peer may retain a half and not have told of a quarter; of the
	// remaining quarter, skipping wastes less than the length of the message.
	return int((l.Tx.size/4-l.keepBytes)/2) &^ (Align - 1)
}

// Send claims n contiguous bytes of the peer's ring and one of its receives for
// an ordinary message, and returns the offset. It returns false and claims
// nothing if there is no room beside the reserve.
func (l *Link) Send(n int) (off uint32, ok bool) {
	if n > l.Room() {
		return 0, false
	}
	if off, ok = l.Tx.Reserve(n); ok {
		l.SendSlots.Take()
	}
	return off, ok
}

// CreditDue reports whether a credit message should be sent if nothing else
// is. Sending one that is not due uses up the reserve for nothing.
func (l *Link) CreditDue() bool { return l.Rx.CreditDue() || l.RecvSlots.CreditDue() }

// SendCredit claims the bytes and the receive for a credit message, out of the
// reserve if need be. It is only for messages that are due. False means that
// the peer has yet to see earlier ones; its next message brings room.
func (l *Link) SendCredit() (off uint32, ok bool) {
	if l.SendSlots.Avail() == 0 {
		return 0, false
	}
	if off, ok = l.Tx.Reserve(int(l.creditLen)); ok {
		l.SendSlots.Take()
	}
	return off, ok
}

// Stamp returns what the header of the message about to be published tells the
// peer, and remembers it as told.
func (l *Link) Stamp() Credit {
	return Credit{Released: uint32(l.Rx.TakeCredit()), Posted: uint16(l.RecvSlots.TakeCredit())}
}

// Apply takes the stamp of a message that arrived. ErrCredit if it cannot be
// true.
func (l *Link) Apply(c Credit) error {
	if err := l.Tx.Credit32(c.Released); err != nil {
		return err
	}
	return l.SendSlots.Credit16(c.Posted)
}
