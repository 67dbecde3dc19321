package soft

import (
	"fmt"
	"sync"
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
	q.recvMu.Begin()
	in := q.in
	if in == nil || q.state.Load() == stateReset {
		q.recvMu.End()
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
		if err = r.put(head, &wrs[n], in.seg.Lengths); err != nil {
			break
		}
		head++
		n++
	}
	if n > 0 {
		r.head.Store(head)
		in.seg.Header.Posted.Store(head) // full fence: the load of flushing comes after the store to head
		if in.flushing.Load() {
			in.wantAttention()
			q.recvCQ.notify(true)
		}
	}
	q.recvMu.End()
	return n, err
}

var errRecvState = fmt.Errorf("%w: a QP in RESET takes no receives", verbs.ErrInvalid)

// srq is a shared receive queue. Poll takes receives out of it when it finds
// that something arrived; while it is empty, arrivals stay in the rings of
// their QPs, whose peers count RNR retries.
type srq struct {
	dev   *device
	pd    *pd
	users users // QPs

	mu      sync.Mutex
	entries []srqEntry       // guarded by mu: a queue, the oldest at first
	first   int              // guarded by mu
	n       int              // guarded by mu
	attr    verbs.SRQAttr    // guarded by mu
	starved map[*cq]struct{} // guarded by mu: CQs with arrivals that wait for receives
}

type srqEntry struct {
	recvEntry
	sgl []verbs.SGE
}

func (e *srqEntry) set(wr *verbs.RecvWR) error {
	total, err := totalOf(wr.SGL)
	if err != nil {
		return err
	}
	e.recvEntry = recvEntry{id: wr.ID, total: total, n: uint32(len(wr.SGL))}
	e.sgl = append(e.sgl[:0], wr.SGL...)
	return nil
}

func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQDriver, error) {
	s := &srq{dev: p.dev, pd: p, attr: *attr, starved: make(map[*cq]struct{})}
	s.entries = make([]srqEntry, attr.MaxWR)
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.dev.closed {
		return nil, verbs.ErrClosed
	}
	if err := mayMake("SRQs", len(s.dev.srqs), maxSRQ); err != nil {
		return nil, err
	}
	if err := p.users.add(); err != nil {
		return nil, err
	}
	s.dev.srqs[s] = struct{}{}
	return s, nil
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.mu.Lock()
	if s.users.closed() {
		s.mu.Unlock()
		return 0, verbs.ErrClosed
	}
	n, err := s.put(wrs)
	var starved map[*cq]struct{}
	if n > 0 && len(s.starved) != 0 {
		starved = s.starved
		s.starved = make(map[*cq]struct{})
	}
	s.mu.Unlock()
	for c := range starved {
		c.notify(true)
	}
	return n, err
}

func (s *srq) put(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGL) > s.attr.MaxSGE {
			return i, fmt.Errorf("%w: %d SGEs, the SRQ has %d", verbs.ErrInvalid, len(wr.SGL), s.attr.MaxSGE)
		}
		if s.n == len(s.entries) {
			return i, verbs.ErrQueueFull
		}
		if err := s.entries[(s.first+s.n)%len(s.entries)].set(wr); err != nil {
			return i, err
		}
		s.n++
	}
	return len(wrs), nil
}

// take moves the oldest receive into p. If there is none, c is notified when
// there is one again.
func (s *srq) take(p *partial, c *cq) bool {
	s.mu.Lock()
	if s.n == 0 {
		s.starved[c] = struct{}{}
		s.mu.Unlock()
		return false
	}
	s.moveTo(p)
	return true
}

// takeFor is take for a message of n bytes that is dropped if it does not fit.
func (s *srq) takeFor(p *partial, n uint32) bool {
	s.mu.Lock()
	if s.n == 0 || s.entries[s.first].total < n {
		s.mu.Unlock()
		return false
	}
	s.moveTo(p)
	return true
}

// moveTo moves the oldest receive into p, and releases mu.
func (s *srq) moveTo(p *partial) {
	e := &s.entries[s.first]
	p.recv = e.recvEntry
	p.sgl = append(p.sgl[:0], e.sgl...)
	s.first = (s.first + 1) % len(s.entries)
	s.n--
	limit := s.n < s.attr.Limit
	if limit {
		s.attr.Limit = 0
	}
	s.mu.Unlock()
	if limit {
		s.dev.raise(verbs.DriverEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

func (s *srq) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users.closed() {
		return verbs.ErrClosed
	}
	size := len(s.entries)
	if mask&verbs.SRQAttrMaxWR != 0 {
		size = attr.MaxWR
	}
	limit := s.attr.Limit
	if mask&verbs.SRQAttrLimit != 0 {
		limit = attr.Limit
	}
	if size < max(s.n, 1) || size > maxQPWR || limit < 0 || limit > size {
		return fmt.Errorf("%w: SRQ of %d with limit %d, %d are posted", verbs.ErrInvalid, size, limit, s.n)
	}
	if size != len(s.entries) {
		entries := make([]srqEntry, size)
		for i := range s.n {
			entries[i] = s.entries[(s.first+i)%len(s.entries)]
		}
		s.entries, s.first = entries, 0
	}
	s.attr.MaxWR, s.attr.Limit = size, limit
	return nil
}

func (s *srq) Query() (verbs.SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users.closed() {
		return verbs.SRQAttr{}, verbs.ErrClosed
	}
	return s.attr, nil
}

func (s *srq) Destroy() error {
	if err := s.users.close(); err != nil {
		return err
	}
	s.pd.users.done()
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	delete(s.dev.srqs, s)
	return nil
}
