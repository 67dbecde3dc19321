package link

import "github.com/seed-b9b531af/ramjet/ring"

// Holder holds a piece of the receive ring that was kept.
type Holder interface {
	// MoveOut copies the piece to other memory, if its holder can do without it now, and
	// reports whether it did: the piece is free then. It is called with the receive lock
	// held, and must not wait.
	MoveOut() bool
}

// pinned holds a piece that is never moved out.
type pinned struct{}

func (pinned) MoveOut() bool { return false }

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

// has reports whether the piece of a token was not freed yet.
func (q *holders) has(t ring.Token) bool {
	return t.Seq()-q.head < q.tail-q.head && q.at(t.Seq()).holder != nil
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

// Retain keeps the message of the present Frame in the ring, until Free. Frame calls it.
func (l *Link) Retain(k Holder) ring.Token {
	t := l.rx.Retain()
	l.holders.add(t, k)
	return t
}

// Free gives back what Retain has kept and MoveOut has not moved. No lock is held.
func (l *Link) Free(t ring.Token) {
	l.recvMu.Lock()
	l.rx.Free(t)
	l.holders.remove(t)
	last := l.ringOver && l.holders.count == 0
	due := !l.ringOver && l.publish()
	l.recvMu.Unlock()
	if last {
		l.closeRing()
	} else if due {
		l.sendCredit()
	}
}

// Pin lets a piece stay where it is until it is freed, and lets go of its holder, unless
// it was freed meanwhile. No lock is held.
func (l *Link) Pin(t ring.Token) {
	l.recvMu.Lock()
	if l.holders.has(t) {
		l.holders.at(t.Seq()).holder = pinned{}
	}
	l.recvMu.Unlock()
}

// moveOut moves the oldest pieces out of the ring until no more than limit bytes are
// held up. The receive lock is held.
func (l *Link) moveOut(limit int) {
	q := &l.holders
	for seq := q.head; seq < q.tail && l.rx.Retained() > limit; seq++ {
		if seq < q.head { // freed with an older one
			continue
		}
		if k := *q.at(seq); k.holder != nil && k.holder.MoveOut() {
			l.rx.Free(k.token)
			q.remove(k.token)
			l.movedOut++
		}
	}
}

// closeRingWhenFree ends the receive ring: what can be moved out is, and the ring is
// closed now or with the last piece that is kept.
func (l *Link) closeRingWhenFree() {
	l.recvMu.Lock()
	l.moveOut(-1)
	l.ringOver = true
	last := l.holders.count == 0
	l.recvMu.Unlock()
	if last {
		l.closeRing()
	}
}

func (l *Link) closeRing() {
	l.ring.Close()
	l.freeMemory()
}
