package uverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// srq is a shared receive queue.
type srq struct {
	dev    *device
	id     uint64
	handle uint32
	end    ending

	// reached: the limit was, and has to be set again. siw goes on reporting
	// it.
	reached atomic.Bool

	mu     sync.Mutex
	queue  driver.SRQ // guarded by mu, nil once destroyed
	broken error      // guarded by mu: the kernel reads another queue than this
}

func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQDriver, error) {
	s := &srq{dev: p.dev}
	var err error
	if s.id, err = p.dev.add(s); err != nil {
		return nil, err
	}
	if err := p.end.use(func() error { return s.create(p, attr) }); err != nil {
		p.dev.drop(s.id)
		return nil, err
	}
	return s, nil
}

func (s *srq) create(p *pd, attr *verbs.SRQAttr) error {
	s.mu.Lock() // Close of the device must not look at it half made
	defer s.mu.Unlock()
	in := abi.CreateSRQIn{
		UserHandle: s.id, PDHandle: p.handle, MaxWR: uint32(attr.MaxWR), MaxSGE: uint32(max(attr.MaxSGE, 1)), Limit: uint32(attr.Limit),
	}
	made := false
	queue, err := s.dev.driver.CreateSRQ(verbs.SRQAttr{MaxWR: attr.MaxWR, MaxSGE: int(in.MaxSGE)}, func(u driver.Udata) (verbs.SRQAttr, error) {
		var out abi.CreateSRQOut
		err := s.dev.commandUdata(abi.CmdCreateSRQ, abi.BytesOf(&in), abi.BytesOf(&out), u)
		s.handle, made = out.Handle, err == nil
		attr.MaxSGE = int(int32(out.MaxSGE))
		return verbs.SRQAttr{MaxWR: int(int32(out.MaxWR)), MaxSGE: attr.MaxSGE}, err
	})
	if err != nil {
		if made {
			_ = s.destroyAtKernel() // the first error is the one to tell
		}
		return err
	}
	s.queue = queue
	attr.MaxWR = queue.Capacity()
	return nil
}

// mapped returns the driver's queue, nil if it is gone.
func (s *srq) mapped() driver.SRQ {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue
}

func (s *srq) destroyAtKernel() error {
	return s.dev.command(abi.CmdDestroySRQ, abi.BytesOf(&abi.DestroyIn{Handle: s.handle}), abi.BytesOf(&abi.DestroyQPOut{}))
}

// PostRecv puts receives into the queue, which takes no system call.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return 0, verbs.ErrClosed
	}
	if s.dev.gone.Load() {
		return 0, errGone
	}
	if s.broken != nil {
		return 0, s.broken
	}
	return s.queue.PostRecv(wrs)
}

func (s *srq) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return verbs.ErrClosed
	}
	if s.broken != nil {
		return s.broken
	}
	in := abi.ModifySRQIn{Handle: s.handle, AttrMask: uint32(mask), MaxWR: uint32(attr.MaxWR), Limit: uint32(attr.Limit)}
	done := false
	err := s.queue.Modify(attr, mask, func(udataIn []byte) error {
		if mask&verbs.SRQAttrLimit != 0 {
			s.reached.Store(false)
		}
		err := s.dev.run(&abi.Request{Cmd: abi.CmdModifySRQ, In: abi.BytesOf(&in), UdataIn: udataIn})
		done = err == nil
		return err
	})
	if err != nil && done {
		s.broken = fmt.Errorf("the SRQ is unusable since its size was changed: %w", err)
		return s.broken
	}
	return err
}

func (s *srq) Query() (verbs.SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return verbs.SRQAttr{}, verbs.ErrClosed
	}
	var out abi.QuerySRQOut
	if err := s.dev.command(abi.CmdQuerySRQ, abi.BytesOf(&abi.QuerySRQIn{Handle: s.handle}), abi.BytesOf(&out)); err != nil {
		return verbs.SRQAttr{}, err
	}
	attr := verbs.SRQAttr{MaxWR: s.queue.Capacity(), MaxSGE: int(int32(out.MaxSGE)), Limit: int(int32(out.Limit))}
	if s.reached.Load() {
		attr.Limit = 0
	}
	return attr, nil
}

func (s *srq) Destroy() error {
	return s.end.once(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.queue == nil {
			return verbs.ErrClosed
		}
		err := s.destroyAtKernel()
		if errors.Is(err, verbs.ErrBusy) {
			return err
		}
		s.dev.drop(s.id)
		s.release()
		return err
	})
}

// release unmaps the queue. The caller holds mu.
func (s *srq) release() {
	if s.queue != nil {
		s.queue.Unmap()
		s.queue = nil
	}
}

func (s *srq) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
}
