//go:build amd64 || arm64

package ibverbs

import (
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// srq is a shared receive queue.
type srq struct {
	dev     *device
	pd      *pd
	address uintptr // struct ibv_srq
	life    lifetime

	// Of one of an XRC domain: that, where its receives complete, and its number.
	domain *xrcDomain
	cq     *cq
	num    uint32
	wrs    []verbs.RecvWR // guarded by the lock: those of a post, with ids of their own

	queue      // its lock is called mu in the lock order
	gone  bool // guarded by the lock
	maxWR int  // guarded by the lock
}

func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQDriver, error) {
	s := &srq{dev: p.dev, pd: p}
	if err := p.make(func() error { return s.create(attr) }); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *srq) create(attr *verbs.SRQAttr) (err error) {
	in := &ibvSRQInitAttr{attr: ibvSRQAttr{maxWR: uint32(attr.MaxWR), maxSGE: uint32(max(attr.MaxSGE, 1)), limit: uint32(attr.Limit)}}
	s.address, err = s.dev.numbered(func() (uintptr, error) { return handle(s.dev.lib.createSRQ, s.pd.address, uintptr(unsafe.Pointer(in))) })
	if err != nil {
		return failed("ibv_create_srq", err)
	}
	return s.created(attr, &in.attr)
}

// created ends the making of an SRQ, of which the library has told what it has.
func (s *srq) created(attr *verbs.SRQAttr, has *ibvSRQAttr) (err error) {
	// Of mlx5 it is the double that is told, and that of half of it which is taken.
	s.maxWR, attr.MaxSGE = attr.MaxWR, int(has.maxSGE)
	if s.room, err = newArena(recvBytes(attr.MaxSGE)); err == nil && attr.Limit > 0 {
		if err = s.setLimit(attr.Limit); err != nil {
			s.room.free()
		}
	}
	if err != nil {
		number(s.dev.lib.destroySRQ, s.address)
		return err
	}
	s.dev.add(s.address, s)
	return nil
}

// setLimit sets the limit that an SRQ is made with: that of ibv_create_srq counts with some drivers alone.
func (s *srq) setLimit(limit int) error {
	in := &ibvSRQAttr{limit: uint32(limit)}
	return failed("ibv_modify_srq", status(s.dev.lib.modifySRQ, s.address, uintptr(unsafe.Pointer(in)), uintptr(verbs.SRQAttrLimit)))
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.Lock()
	defer s.Unlock()
	switch {
	case s.gone:
		return 0, verbs.ErrClosed
	case s.dev.gone.Load():
		return 0, errGone
	}
	if s.domain == nil {
		return s.post(wrs)
	}
	s.wrs = append(s.wrs[:0], wrs...)
	s.cq.expect(s, s.wrs) // before one can complete
	n, err := s.post(s.wrs)
	s.cq.forget(s.wrs[n:])
	clear(s.wrs)
	return n, err
}

// post posts receives. The caller holds the lock.
func (s *srq) post(wrs []verbs.RecvWR) (int, error) {
	return s.postRecvs("ibv_post_srq_recv", s.dev.ops[opPostSRQRecv], s.address, wrs)
}

// named runs a call that names the SRQ.
func (s *srq) named(function string, f func() error) error {
	return s.dev.during(func() error {
		return s.life.during(func() error { return failed(function, f()) })
	})
}

func (s *srq) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	in := &ibvSRQAttr{maxWR: uint32(attr.MaxWR), limit: uint32(attr.Limit)}
	return s.named("ibv_modify_srq", func() error {
		s.Lock()
		defer s.Unlock()
		err := status(s.dev.lib.modifySRQ, s.address, uintptr(unsafe.Pointer(in)), uintptr(mask))
		if err == nil && mask&verbs.SRQAttrMaxWR != 0 {
			s.maxWR = attr.MaxWR
		}
		return err
	})
}

func (s *srq) Query() (verbs.SRQAttr, error) {
	out := new(ibvSRQAttr)
	err := s.named("ibv_query_srq", func() error {
		return status(s.dev.lib.querySRQ, s.address, uintptr(unsafe.Pointer(out)))
	})
	s.Lock()
	defer s.Unlock()
	return verbs.SRQAttr{MaxWR: s.maxWR, MaxSGE: int(out.maxSGE), Limit: int(out.limit)}, err
}

func (s *srq) Destroy() error { return s.dev.during(s.destroy) }

func (s *srq) rank() int { return rankSRQ }

func (s *srq) destroy() error {
	return s.life.end(func() error {
		s.Lock()
		defer s.Unlock()
		s.dev.drop(s.address)
		err := failed("ibv_destroy_srq", s.free())
		if s.dev.restore(s.address, s, err) {
			return err
		}
		s.gone = true
		s.room.free()
		s.pd.life.release()
		if s.domain != nil {
			releaseAll(&s.domain.life, &s.cq.life)
		}
		return err
	})
}

func (s *srq) abandon() {
	s.Lock()
	defer s.Unlock()
	s.gone = true
	s.room.free()
}

// free has the library destroy the SRQ. The caller holds the lock.
func (s *srq) free() error {
	destroy := func() error { return status(s.dev.lib.destroySRQ, s.address) }
	if s.domain == nil {
		return destroy()
	}
	return s.cq.leave(s, destroy)
}
