package ring

// Token stands for one retention made by Rx.Retain. The zero Token is never
// given out.
type Token struct{ seq uint64 }

// Seq numbers retentions of one ring in the order in which they were made: 1
// for the first, then one more each. Callers that must find what a token stands
// for index by it.
func (t Token) Seq() uint64 { return t.seq }

// retained is a deque of retentions, oldest first, in a circular slice that
// grows by doubling. Entries are message positions, whose low bits are free:
// freedMark says that the entry was freed but an older one was not. The head is
// never a freed one.
type retained struct {
	entries []uint64 // length a power of two, index seq & (len-1)
	head    uint64   // sequence number of the oldest; the first ever is 1
	tail    uint64   // sequence number of the next; 0 before the first
}

const (
	freedMark   = 1
	minRetained = 16
)

func (q *retained) empty() bool    { return q.head == q.tail }
func (q *retained) oldest() uint64 { return q.entries[q.head&uint64(len(q.entries)-1)] }

func (q *retained) push(pos uint64) Token {
	if q.tail-q.head == uint64(len(q.entries)) {
		q.grow()
	}
	seq := q.tail
	q.entries[seq&uint64(len(q.entries)-1)] = pos
	q.tail++
	return Token{seq}
}

func (q *retained) free(t Token) {
	mask := uint64(len(q.entries) - 1)
	if t.seq-q.head >= q.tail-q.head || q.entries[t.seq&mask]&freedMark != 0 {
		panic("ring: Free of a token that is not retained")
	}
	q.entries[t.seq&mask] |= freedMark
	for q.head != q.tail && q.entries[q.head&mask]&freedMark != 0 {
		q.head++
	}
}

// grow doubles the slice. Entries move, because their index depends on its
// length.
func (q *retained) grow() {
	old := q.entries
	q.entries = make([]uint64, max(minRetained, 2*len(old)))
	if old == nil {
		q.head, q.tail = 1, 1 // 0 stays unused, for the zero Token
		return
	}
	for seq := q.head; seq != q.tail; seq++ {
		q.entries[seq&uint64(len(q.entries)-1)] = old[seq&uint64(len(old)-1)]
	}
}
