package ring

import "fmt"

// Rx is the receiver's side of a ring: where arriving messages lie, which of
// them are still needed, and what the peer may therefore overwrite. The zero
// Rx takes no message until Init.
//
// A message counts as released as soon as it is placed, unless it is retained.
// So after Place, look at the message, and consume or Retain it, before the
// next Place and before TakeCredit.
type Rx struct {
	placed uint64 // position after the message placed last, multiple of Align
	last   uint64 // position at which the message placed last starts
	base   uint64 // position of the last Restart: it lies at offset 0
	told   uint64 // released position that the peer was last told
	size   uint64
	step   uint64 // bytes released since told that make an update worth sending
	kept   retained
}

// Init makes r the receiving side of an empty ring of size bytes, a power of
// two from MinSize to MaxSize.
func (r *Rx) Init(size uint32) error {
	if err := checkSize(size); err != nil {
		return err
	}
	*r = Rx{size: uint64(size), step: uint64(size) / 4}
	return nil
}

// SetCreditStep sets how many bytes are released before CreditDue reports
// true: Align to a quarter of the ring, the default. Less saves the sender from
// waiting, more saves messages.
func (r *Rx) SetCreditStep(bytes int) error {
	if bytes < Align || uint64(bytes) > r.size/4 {
		return fmt.Errorf("%w: credit step of %d bytes, want %d to %d", ErrSize, bytes, Align, r.size/4)
	}
	r.step = uint64(bytes)
	return nil
}

// Place computes where the message of n bytes that was just announced lies, by
// the same rule as Tx.Reserve, and advances over it. ErrOverrun if n is not a
// possible length or the message reaches beyond Released()+size: the peer wrote
// what it had no credit for. After an error nothing has changed.
func (r *Rx) Place(n int) (off uint32, err error) {
	start, end := place(r.placed, r.base, r.size, n)
	if n <= 0 || uint64(n) > r.size || end-r.Released() > r.size {
		return 0, r.overrun(n)
	}
	r.last, r.placed = start, end
	return uint32((start - r.base) & (r.size - 1)), nil
}

// Restart makes the next message start at offset 0, as Tx.Restart of the peer has
// said. ErrOverrun if not everything is released: the peer cannot know that it is.
func (r *Rx) Restart() error {
	if r.Released() != r.placed {
		return fmt.Errorf("%w: restart at %d, released %d", ErrOverrun, r.placed, r.Released())
	}
	r.base = r.placed
	return nil
}

func (r *Rx) overrun(n int) error {
	return fmt.Errorf("%w: message of %d bytes at %d, released %d, ring %d", ErrOverrun, n, r.placed, r.Released(), r.size)
}

// Retain keeps the message placed last from being released, until Free. It may
// be called several times for one message, for instance once for each frame in
// it; the message is kept until all its tokens are freed. Retaining a message
// that the peer was already told it may overwrite is a bug of the caller and
// panics.
func (r *Rx) Retain() Token {
	if r.placed == r.last || r.told > r.last {
		panic("ring: Retain of a message that is released already")
	}
	return r.kept.push(r.last)
}

// Free gives a retention back, in any order. A token that was freed already, or
// never given out, is a bug of the caller and panics.
func (r *Rx) Free(t Token) { r.kept.free(t) }

// Oldest returns the oldest retention that was not freed: the one that holds
// up the release of everything behind it. False if nothing is retained.
func (r *Rx) Oldest() (Token, bool) { return Token{r.kept.head}, !r.kept.empty() }

// Placed returns the position after the message placed last.
func (r *Rx) Placed() uint64 { return r.placed }

// Released returns the position up to which the peer may overwrite the ring:
// the start of the oldest retained message, or Placed if none is retained.
func (r *Rx) Released() uint64 {
	if r.kept.empty() {
		return r.placed
	}
	return r.kept.oldest()
}

// Retained returns the bytes between Released and Placed: what retained
// messages keep occupied, with everything behind the oldest of them.
func (r *Rx) Retained() int { return int(r.placed - r.Released()) }

// SpillDue reports whether retained messages keep more than half of the ring
// occupied, so that the oldest must be moved elsewhere and freed: otherwise a
// peer whose data nobody reads would stop all others of the connection.
func (r *Rx) SpillDue() bool { return r.placed-r.Released() > r.size/2 }

// Untold returns the bytes that were released since the last TakeCredit.
func (r *Rx) Untold() int { return int(r.Released() - r.told) }

// CreditDue reports whether so much was released since the last TakeCredit
// that the peer should be told even if there is nothing else to send.
func (r *Rx) CreditDue() bool { return r.Released()-r.told >= r.step }

// TakeCredit returns Released, to be sent to the peer, and remembers it as
// told. Its low 32 bits are enough for Tx.Credit32.
func (r *Rx) TakeCredit() uint64 {
	r.told = r.Released()
	return r.told
}

// Size returns the size of the ring in bytes.
func (r *Rx) Size() uint32 { return uint32(r.size) }
