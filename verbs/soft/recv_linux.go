package soft

import (
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// recvQueue is the receive queue of a QP: written by PostRecv under the QP's
// recvMu, read by Poll under the CQ's pollMu.
type recvQueue struct {
	entries atomic.Pointer[[]recvEntry] // nil: all receives are like emptyReceive
	size    uint32                      // how many there are: a power of two
	sges    []verbs.SGE                 // maxSGE for each entry
	maxSGE  int
	depth   uint64 // receives that may be outstanding

	head atomic.Uint64 // receives posted
	tail atomic.Uint64 // receives used
}

type recvEntry struct {
	id    uint64
	total uint32 // bytes that it takes
	n     uint32 // SGEs
}

func (r *recvQueue) init(size uint32, depth, maxSGE int) {
	r.size = size
	r.maxSGE = maxSGE
	r.depth = uint64(depth)
}

// emptyReceive has no ID and no memory: all that WRITEs with immediate need.
var emptyReceive recvEntry

func (r *recvQueue) at(i uint64) *recvEntry {
	if entries := r.entries.Load(); entries != nil {
		return &(*entries)[i&uint64(len(*entries)-1)]
	}
	return &emptyReceive
}

// sgl returns the scatter list of entry i.
func (r *recvQueue) sgl(i uint64) []verbs.SGE {
	e := r.at(i)
	if e.n == 0 {
		return nil
	}
	at := int(i&uint64(r.size-1)) * r.maxSGE
	return r.sges[at : at+int(e.n)]
}

// pop takes the oldest entry. The caller holds pollMu.
func (r *recvQueue) pop() (recvEntry, bool) {
	tail := r.tail.Load()
	if tail == r.head.Load() {
		return recvEntry{}, false
	}
	e := *r.at(tail)
	r.tail.Store(tail + 1)
	return e, true
}

// put writes entry i.
func (r *recvQueue) put(i uint64, wr *verbs.RecvWR, lengths []atomic.Uint32) error {
	slot := i & uint64(r.size-1)
	entries := r.entries.Load()
	if entries == nil {
		if wr.ID == 0 && len(wr.SGL) == 0 {
			return nil
		}
		entries = new([]recvEntry)
		*entries = make([]recvEntry, r.size)
		r.entries.Store(entries)
	}
	e := &(*entries)[slot]
	e.id = wr.ID
	if len(wr.SGL)|int(e.total)|int(e.n) == 0 {
		return nil // as it was, which is the case that matters
	}
	total, err := totalOf(wr.SGL)
	if err != nil {
		return err
	}
	if r.sges == nil {
		r.sges = make([]verbs.SGE, int(r.size)*r.maxSGE)
	}
	e.total, e.n = total, uint32(len(wr.SGL))
	copy(r.sges[int(slot)*r.maxSGE:], wr.SGL)
	lengths[slot].Store(total)
	return nil
}

func totalOf(sgl []verbs.SGE) (uint32, error) {
	total := uint64(0)
	for i := range sgl {
		total += uint64(sgl[i].Length)
	}
	if total > maxMessageSize {
		return 0, fmt.Errorf("%w: receive of %d bytes, a message has at most %d", verbs.ErrInvalid, total, uint64(maxMessageSize))
	}
	return uint32(total), nil
}

// maxMessageSize is the most that one message carries (InfiniBand
// Architecture Specification, 9.7.2).
const maxMessageSize = 1 << 31

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.recvMu.Lock()
	in := q.in
	if in == nil || q.state.Load() == stateReset {
		q.recvMu.Unlock()
		if in == nil {
			return 0, verbs.ErrClosed
		}
		return 0, errRecvState
	}
	r := &in.recvs
	head := r.head.Load()
	free := r.depth - (head - r.tail.Load())
	var err error
	n := 0
	for n < len(wrs) {
		if uint64(n) >= free {
			err = verbs.ErrQueueFull
			break
		}
		if err = r.put(head, &wrs[n], in.seg.lengths); err != nil {
			break
		}
		head++
		n++
	}
	if n > 0 {
		r.head.Store(head)
		in.seg.hdr.posted.Store(head)
		if in.flushing.Load() {
			in.wantAttention()
			q.recvCQ.ring(true)
		}
	}
	q.recvMu.Unlock()
	return n, err
}

var errRecvState = fmt.Errorf("%w: a QP in RESET takes no receives", verbs.ErrInvalid)
