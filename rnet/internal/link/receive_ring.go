package link

import (
	"fmt"
	"sync"

	"github.com/seed-b9b531af/ramjet/internal/release"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// receiveRing is the ring into which the peer writes.
type receiveRing struct {
	mr   *verbs.MR
	size uint32

	mu       sync.Mutex // the receive lock; it guards these
	rx       ring.Rx
	holders  holders
	frames   uint64 // that have arrived
	movedOut uint64 // pieces
	asked    uint64 // released position at which publish said that credit was due
	over     bool   // the link was closed: the last piece closes the ring
}

// alloc makes the ring, and the least bounce buffer if there is to be one. Where memory is short
// a smaller ring is better than none, and so is one that leaves the bounce buffer its least.
func (r *receiveRing) alloc(pd *verbs.PD, has *sizes, bounce *bounceBuffer) error {
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if has.probes && has.emulation != nil {
		access |= verbs.AccessRemoteRead // see probing
	}
	for {
		mr, err := allocUpTo(pd, r.size, access, verbs.MROptions{Sparse: true, OnePeer: true})
		if err != nil {
			return err
		}
		r.size = uint32(len(mr.Bytes()))
		if has.bounce() { // it grows when the peer's ring is known
			bounce.mr, err = pd.AllocMR(MinRing, verbs.AccessLocalWrite, verbs.MROptions{})
		}
		if err == nil {
			r.mr = mr
			return nil
		}
		mr.Close()
		if !isShort(err) || r.size/2 < MinRing {
			return err
		}
		r.size /= 2
	}
}

// message returns the message that was written to the ring. mu is held.
func (r *receiveRing) message(wc *verbs.WC, released uint64) ([]byte, error) {
	if wc.Imm&immRestart != 0 {
		if err := r.restart(released); err != nil {
			return nil, err
		}
	}
	off, err := r.rx.Place(int(wc.ByteLen))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	// The ring counts as released what nobody keeps. What was not published yet
	// (it was collected, and not handled) the peer has no credit for.
	if r.rx.Placed()-released > uint64(r.size) {
		return nil, fmt.Errorf("%w: message of %d bytes reaches to %d, released %d, ring %d",
			ErrProtocol, wc.ByteLen, r.rx.Placed(), released, r.size)
	}
	return r.mr.Bytes()[off : off+wc.ByteLen], nil
}

// restart goes on at the start of the ring, as the peer does. Only who was told that
// all is released may.
func (r *receiveRing) restart(released uint64) error {
	if err := r.rx.Restart(); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if released != r.rx.Placed() {
		return fmt.Errorf("%w: restart of the ring at %d, released %d", ErrProtocol, r.rx.Placed(), released)
	}
	return nil
}

// publish notes what is released, for the sending half, and reports whether sendCredit is
// worth a call. The receive lock is held.
func (r *receiveRing) publish(back *given) (due bool) {
	released := r.rx.Released()
	if released == back.released.Load() {
		return false
	}
	release.Store(&back.released, released) // seen late by the sending half, it tells less
	if released-r.asked < uint64(r.size)/8 {
		return false
	}
	r.asked = released
	return true
}

// moveOut moves the oldest pieces out of the ring until no more than limit bytes are
// held up. The receive lock is held.
func (r *receiveRing) moveOut(limit int) {
	q := &r.holders
	for seq := q.head; seq < q.tail && r.rx.Retained() > limit; seq++ {
		if seq < q.head { // freed with an older one
			continue
		}
		if k := *q.at(seq); k.holder != nil && k.holder.MoveOut() {
			r.rx.Free(k.token)
			q.remove(k.token)
			r.movedOut++
		}
	}
}

// end lets go of all that can be moved out, and reports whether nothing else is kept.
func (r *receiveRing) end() (free bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveOut(-1)
	r.over = true
	return r.holders.count == 0
}

// Holder holds a piece of the receive ring that was kept.
type Holder interface {
	// MoveOut copies the piece to other memory, if its holder can do without it now, and
	// reports whether it did: the piece is free then. It is called with the receive lock
	// held, and must not wait. A holder that cannot has to copy it and call Free as soon as
	// it can: it may not be asked again before the peer has room.
	MoveOut() bool
}

// holding is a piece and who has it.
type holding struct {
	holder Holder // nil: the piece was freed
	token  ring.Token
}

// holders has who holds pieces of the receive ring, by the sequence number of their
// token. The receive lock guards it.
type holders struct {
	list  []holding // at sequence number modulo length, a power of two
	head  uint64    // sequence number of the oldest
	tail  uint64    // sequence number of the next
	count int
}

const minHolders = 16

// at returns the place of a sequence number from head to tail.
func (q *holders) at(seq uint64) *holding { return &q.list[seq&uint64(len(q.list)-1)] }

func (q *holders) add(t ring.Token, k Holder) {
	if q.head == q.tail {
		q.head = t.Seq()
		q.tail = q.head
	}
	if q.tail-q.head == uint64(len(q.list)) {
		q.grow()
	}
	*q.at(q.tail) = holding{k, t}
	q.tail++
	q.count++
}

func (q *holders) grow() {
	old := *q
	q.list = make([]holding, max(minHolders, 2*len(old.list)))
	for seq := q.head; seq != q.tail; seq++ {
		*q.at(seq) = *old.at(seq)
	}
}

func (q *holders) remove(t ring.Token) {
	*q.at(t.Seq()) = holding{}
	q.count--
	for q.head != q.tail && q.at(q.head).holder == nil {
		q.head++
	}
}
