package soft

import (
	"fmt"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

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

func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQDriver, error) {
	s := &srq{dev: p.dev, pd: p, attr: *attr, starved: make(map[*cq]struct{})}
	s.entries = make([]srqEntry, attr.MaxWR)
	if err := p.users.add(); err != nil {
		return nil, err
	}
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.dev.closed {
		p.users.done()
		return nil, verbs.ErrClosed
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
		c.ring(true)
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
		total, err := totalOf(wr.SGL)
		if err != nil {
			return i, err
		}
		e := &s.entries[(s.first+s.n)%len(s.entries)]
		e.recvEntry = recvEntry{id: wr.ID, total: total, n: uint32(len(wr.SGL))}
		e.sgl = append(e.sgl[:0], wr.SGL...)
		s.n++
	}
	return len(wrs), nil
}

// take moves the oldest receive into p. If there is none, c is rung when
// there is one again.
func (s *srq) take(p *partial, c *cq) bool {
	s.mu.Lock()
	if s.n == 0 {
		s.starved[c] = struct{}{}
		s.mu.Unlock()
		return false
	}
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
	return true
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
