package uverbs

import (
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
	num    uint32 // of an XRC domain
	cq     *cq    // the same: where its receives complete
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
	in := abi.CreateSRQIn{PDHandle: p.handle, MaxWR: uint32(attr.MaxWR), MaxSGE: uint32(max(attr.MaxSGE, 1)), Limit: uint32(attr.Limit)}
	err := s.createOn([]*ending{&p.end}, func() error {
		in.UserHandle = s.id
		return s.create(attr, s.dev.driver.CreateSRQ, abi.CmdCreateSRQ, abi.BytesOf(&in))
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// createOn makes the SRQ while what it is made of stays.
func (s *srq) createOn(parts []*ending, create func() error) (err error) {
	if s.id, err = s.dev.add(s); err != nil {
		return err
	}
	if err := useAll(parts, create); err != nil {
		s.dev.drop(s.id)
		return err
	}
	return nil
}

// create makes the driver's queue, for which the command is given.
func (s *srq) create(attr *verbs.SRQAttr, by func(verbs.SRQAttr, func(driver.Udata) (verbs.SRQAttr, error)) (driver.SRQ, error),
	cmd abi.Command, in []byte) error {
	s.mu.Lock() // Close of the device must not look at it half made
	defer s.mu.Unlock()
	made := false
	queue, err := by(verbs.SRQAttr{MaxWR: attr.MaxWR, MaxSGE: max(attr.MaxSGE, 1)}, func(u driver.Udata) (verbs.SRQAttr, error) {
		var out abi.CreateSRQOut
		err := s.dev.commandUdata(cmd, in, abi.BytesOf(&out), u)
		s.handle, s.num, made = out.Handle, out.Num, err == nil
		attr.MaxSGE = int(int32(out.MaxSGE))
		return verbs.SRQAttr{MaxWR: int(int32(out.MaxWR)), MaxSGE: attr.MaxSGE}, err
	})
	if err != nil {
		if made {
			s.dev.undo(s, s.destroyAtKernel, s.release)
		}
		return err
	}
	s.queue = queue
	attr.MaxWR = queue.Capacity()
	if attr.Limit == 0 {
		return nil
	}
	// The command has it too, but not all drivers look at it there (srq.c of hw/mlx5, mlx5_ib_create_srq).
	if err = s.modify(*attr, verbs.SRQAttrLimit); err != nil {
		s.dev.undo(s, s.destroyAtKernel, s.release)
	}
	return err
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
	return s.modify(attr, mask)
}

// modify is Modify of an SRQ that is there. The caller holds mu.
func (s *srq) modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
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
		if s.cq != nil {
			s.dev.srqNumbers.leave(s.num)
			defer s.dev.srqNumbers.left(s.num)
		}
		err := s.destroyAtKernel()
		if !destroyed(err) {
			return err
		}
		if s.cq != nil {
			s.cq.detachSRQ(s.num, s.release)
		} else {
			s.release()
		}
		s.dev.drop(s.id) // after that: see cq.Destroy
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
