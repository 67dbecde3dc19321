package uverbs

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// deviceMemory is memory of the device.
type deviceMemory struct {
	dev    *device
	id     uint64
	handle uint32
	end    ending
	memory driver.DM // nil once unmapped: by end.once, or when the device is closed
}

func (d *device) AllocDM(length int) (verbs.DMDriver, error) {
	ctx, ok := d.driver.(driver.MemoryContext)
	if !ok {
		return nil, verbs.ErrUnsupported
	}
	m, made := &deviceMemory{dev: d}, false
	m.end.mu.Lock() // Close of the device waits for what is half made, and unmaps it
	defer m.end.mu.Unlock()
	var err error
	if m.id, err = d.add(m); err != nil {
		return nil, err
	}
	m.memory, err = ctx.AllocDM(length, func(attrs []driver.Attr) error {
		err := m.alloc(length, attrs)
		made = err == nil
		return err
	})
	if err == nil {
		return m, nil
	}
	d.drop(m.id)
	if made {
		_ = m.freeAtKernel() // the first error is the one to tell
	}
	return nil, err
}

func (m *deviceMemory) alloc(length int, attrs []driver.Attr) error {
	return m.dev.method("DM_ALLOC", func(page []byte) abi.Call { return layAllocDM(page, length, attrs) }, func(call *abi.Call) {
		m.handle = uint32(call.Attr(0))
		at := abi.PageOut
		for _, a := range attrs {
			copy(a.Out, call.Page[at:])
			at += answerRoom
		}
	})
}

// answerRoom is the room for an answer of the driver's attributes.
const answerRoom = 8

// layAllocDM lays the call out on a page. The memory is aligned as the device has it.
func layAllocDM(page []byte, length int, attrs []driver.Attr) abi.Call {
	call := abi.Call{Page: page, Object: abi.ObjectDM, Method: abi.MethodAllocDM}
	call.Handle(abi.AttrAllocDMHandle, 0) // where the kernel puts that of the memory
	call.Constant(abi.AttrAllocDMLength, uint64(length))
	call.In(abi.AttrAllocDMAlignment, abi.PageIn, 4)
	for i, a := range attrs {
		call.Out(a.ID, abi.PageOut+i*answerRoom, len(a.Out))
	}
	return call
}

func (m *deviceMemory) freeAtKernel() error {
	return m.dev.method("DM_FREE", func(page []byte) abi.Call {
		call := abi.Call{Page: page, Object: abi.ObjectDM, Method: abi.MethodFreeDM}
		call.Handle(abi.AttrFreeDMHandle, uint64(m.handle))
		return call
	}, nil)
}

func (m *deviceMemory) Read(b []byte, offset int) error {
	return m.use(func() error { return m.memory.Read(b, offset) })
}

func (m *deviceMemory) Write(b []byte, offset int) error {
	return m.use(func() error { return m.memory.Write(b, offset) })
}

// use runs a copy. Close of the device, which unmaps the memory, waits for it. In place of what a
// device that was removed has mapped the kernel puts zeros, after it has begun to refuse commands
// (core/uverbs_main.c, ib_uverbs_free_hw_resources): one that works after the copy shows that
// there was a device.
func (m *deviceMemory) use(copy func() error) error {
	return m.end.use(func() error {
		m.dev.life.RLock()
		defer m.dev.life.RUnlock()
		if m.dev.closed {
			return verbs.ErrClosed
		}
		if err := copy(); err != nil {
			return err
		}
		return m.dev.failed("query device", m.dev.answers())
	})
}

func (m *deviceMemory) Free() error {
	return m.end.once(func() error {
		err := m.freeAtKernel()
		if destroyed(err) {
			m.unmap()
			m.dev.drop(m.id) // after that: see cq.Destroy
		}
		return err
	})
}

// unmap is called by who holds end.mu.
func (m *deviceMemory) unmap() {
	if m.memory != nil {
		m.memory.Unmap()
		m.memory = nil
	}
}

func (m *deviceMemory) abandon() {
	m.end.mu.Lock()
	defer m.end.mu.Unlock()
	m.end.closed = true
	m.unmap()
}

// RegisterDM registers memory of the device. The kernel does not free it before the region.
func (p *pd) RegisterDM(of verbs.DMDriver, offset, length int, access verbs.Access) (verbs.MRDriver, error) {
	m, ok := of.(*deviceMemory)
	if !ok || m.dev != p.dev {
		return nil, fmt.Errorf("%w: memory of another device", verbs.ErrInvalid)
	}
	r := &region{dev: p.dev}
	return r.registerBy([]*ending{&p.end, &m.end}, "DM_MR_REG", func(page []byte) abi.Call {
		return layRegDM(page, regDM{pd: p.handle, memory: m.handle, offset: uint64(offset), length: uint64(length), access: access})
	})
}

// regDM is what DM_MR_REG is told.
type regDM struct {
	pd, memory     uint32
	offset, length uint64
	access         verbs.Access
}

// layRegDM lays the call out on a page, with the keys as layDMABuf has them.
func layRegDM(page []byte, m regDM) abi.Call {
	call := abi.Call{Page: page, Object: abi.ObjectMR, Method: abi.MethodRegDM}
	call.Handle(abi.AttrRegDMHandle, 0) // where the kernel puts that of the new region
	call.Constant(abi.AttrRegDMOffset, m.offset)
	call.Constant(abi.AttrRegDMLength, m.length)
	call.Handle(abi.AttrRegDMPD, uint64(m.pd))
	*abi.ViewAt[uint32](page, abi.PageIn) = uint32(m.access)
	call.In(abi.AttrRegDMAccess, abi.PageIn, 4)
	call.Handle(abi.AttrRegDMMemory, uint64(m.memory))
	call.Out(abi.AttrRegDMLKey, abi.PageOut, 4)
	call.Out(abi.AttrRegDMRKey, abi.PageOut+8, 4)
	return call
}
