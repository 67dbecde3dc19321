package uverbs

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/pages"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// region is a memory region.
type region struct {
	dev    *device
	id     uint64
	handle uint32
	lkey   uint32
	rkey   uint32
	mem    []byte // nil if the memory is a DMA buffer's, the device's or all, and if there is none
	null   bool   // it has no memory, and the kernel knows nothing of it
	addr   uint64

	mu     sync.Mutex
	owned  []byte // guarded by mu: what AllocMR mapped, nil once unmapped
	closed bool   // guarded by mu
}

func (p *pd) AllocMR(length int, access verbs.Access, opt verbs.MROptions) (verbs.MRDriver, error) {
	mapped, err := pages.Map(length, opt.HugePages)
	if err != nil {
		return nil, err
	}
	r, err := p.registerMemory(&region{mem: mapped[:length:length], owned: mapped, addr: opt.IOVA}, access)
	if err != nil {
		p.dev.Free(mapped)
		return nil, err
	}
	return r, nil
}

// RegisterMR registers memory of the caller. The list of what is open keeps
// it reachable, and Go does not move what is on its heap.
func (p *pd) RegisterMR(mem []byte, access verbs.Access) (verbs.MRDriver, error) {
	r, err := p.registerMemory(&region{mem: mem}, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// RegisterMRAt is RegisterMR with addresses from iova on.
func (p *pd) RegisterMRAt(mem []byte, iova uint64, access verbs.Access) (verbs.MRDriver, error) {
	r, err := p.registerMemory(&region{mem: mem, addr: iova}, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// RegisterAll registers all addresses (implicit on-demand paging).
func (p *pd) RegisterAll(access verbs.Access) (verbs.MRDriver, error) {
	r, err := p.register(new(region), abi.RegMRIn{Length: allMemory, AccessFlags: uint32(access)})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// allMemory is the length of a region of all addresses (ULONG_MAX of the kernel).
const allMemory = 1<<64 - 1

// AllocNullMR makes a region without memory, whose key is the device's.
func (p *pd) AllocNullMR() (verbs.MRDriver, error) {
	r := &region{dev: p.dev, null: true}
	ctx, ok := p.dev.driver.(driver.NullContext)
	if ok {
		r.lkey, ok = ctx.NullKey()
	}
	if !ok {
		return nil, verbs.ErrUnsupported
	}
	err := p.end.use(func() (err error) {
		_, err = r.list()
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// registerMemory registers the memory of r. If r has no address yet it gets that of its memory.
func (p *pd) registerMemory(r *region, access verbs.Access) (*region, error) {
	start := abi.AddressOf(r.mem)
	return p.register(r, abi.RegMRIn{
		Start: start, Length: uint64(len(r.mem)), HCAVA: pages.DeviceAddress(start, r.addr, access&verbs.AccessZeroBased != 0), AccessFlags: uint32(access),
	})
}

// register makes the kernel's side of r.
func (p *pd) register(r *region, in abi.RegMRIn) (*region, error) {
	in.PDHandle = p.handle
	var out abi.RegMROut
	err := p.end.use(func() error {
		return p.dev.commandUdata(abi.CmdRegMR, abi.BytesOf(&in), abi.BytesOf(&out), p.dev.driver.Udata(abi.CmdRegMR))
	})
	if err != nil {
		return nil, err
	}
	r.dev, r.addr, r.handle, r.lkey, r.rkey = p.dev, in.HCAVA, out.Handle, out.LKey, out.RKey
	return r.list()
}

// list makes Close of the device know r.
func (r *region) list() (*region, error) {
	id, err := r.dev.add(r)
	if err != nil {
		return nil, err // the kernel destroys it with the device
	}
	r.id = id
	return r, nil
}

func (r *region) Bytes() []byte { return r.mem }
func (r *region) Addr() uint64  { return r.addr }
func (r *region) LKey() uint32  { return r.lkey }
func (r *region) RKey() uint32  { return r.rkey }

func (r *region) Deregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return verbs.ErrClosed
	}
	var err error
	if !r.null {
		err = r.dev.command(abi.CmdDeregMR, abi.BytesOf(&abi.HandleOnly{Handle: r.handle}), nil)
	}
	if !destroyed(err) {
		return err // peers may write there
	}
	r.dev.drop(r.id)
	r.unmap()
	return err
}

// unmap frees the memory. The caller holds mu.
func (r *region) unmap() {
	r.closed = true
	if r.owned != nil {
		r.dev.Free(r.owned)
		r.owned = nil
	}
}

func (r *region) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unmap()
}

// Reregister changes a region. Its keys may change with it.
func (r *region) Reregister(mem []byte, iova uint64, to verbs.PDDriver, access verbs.Access, mask verbs.MRChange) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return verbs.ErrClosed
	}
	// The driver of ConnectX makes some regions on demand anew for other rights, of the memory that
	// the command names, also if that does not change (mr.c of hw/mlx5, mlx5_ib_rereg_user_mr).
	in := abi.ReregMRIn{
		Handle: r.handle, Flags: uint32(mask), AccessFlags: uint32(access), Start: abi.AddressOf(r.mem), Length: uint64(len(r.mem)), HCAVA: r.addr,
	}
	if mask&verbs.MRChangeMemory != 0 {
		in.Start, in.Length, in.HCAVA = abi.AddressOf(mem), uint64(len(mem)), pages.DeviceAddress(abi.AddressOf(mem), iova, access&verbs.AccessZeroBased != 0)
	}
	var out abi.ReregMROut
	rereg := func() error { return r.dev.command(abi.CmdReregMR, abi.BytesOf(&in), abi.BytesOf(&out)) }
	var err error
	if mask&verbs.MRChangePD != 0 {
		p, ok := to.(*pd)
		if !ok || p.dev != r.dev {
			return fmt.Errorf("%w: PD of another device", verbs.ErrInvalid)
		}
		in.PDHandle = p.handle
		err = p.end.use(rereg)
	} else {
		err = rereg()
	}
	if err != nil {
		return err
	}
	if mask&verbs.MRChangeMemory != 0 {
		r.mem, r.addr = mem, in.HCAVA
	}
	r.lkey, r.rkey = out.LKey, out.RKey
	return nil
}

// RegisterDMABuf registers a piece of a DMA buffer, for instance of a GPU.
func (p *pd) RegisterDMABuf(fd int, offset uint64, length int, iova uint64, access verbs.Access) (verbs.MRDriver, error) {
	r := &region{dev: p.dev, addr: iova}
	return r.registerBy([]*ending{&p.end}, regDMABufName, func(page []byte) abi.Call {
		return layDMABuf(page, regDMABuf{pd: p.handle, fd: int32(fd), offset: offset, length: uint64(length), iova: iova, access: access})
	})
}

// registerBy makes the kernel's side of r, which has no memory of the process, by a method whose
// answer is as that of layDMABuf. It names the objects of ends.
func (r *region) registerBy(ends []*ending, name string, lay func(page []byte) abi.Call) (verbs.MRDriver, error) {
	err := useAll(ends, func() error { return r.registerAtKernel(name, lay) })
	if err == nil {
		_, err = r.list()
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *region) registerAtKernel(name string, lay func(page []byte) abi.Call) error {
	return r.dev.method(name, lay, func(call *abi.Call) {
		r.handle = uint32(call.Attr(0))
		r.lkey, r.rkey = *abi.ViewAt[uint32](call.Page, abi.PageOut), *abi.ViewAt[uint32](call.Page, abi.PageOut+8)
	})
}

const regDMABufName = "REG_DMABUF_MR"

// regDMABuf is what REG_DMABUF_MR is told.
type regDMABuf struct {
	pd                   uint32
	fd                   int32
	offset, length, iova uint64
	access               verbs.Access
}

// layDMABuf lays the call out on a page. The kernel puts the keys at abi.PageOut
// and eight bytes behind it.
func layDMABuf(page []byte, m regDMABuf) abi.Call {
	call := abi.Call{Page: page, Object: abi.ObjectMR, Method: abi.MethodRegDMABuf}
	call.Handle(abi.AttrDMABufHandle, 0) // where the kernel puts that of the new region
	call.Handle(abi.AttrDMABufPD, uint64(m.pd))
	call.Constant(abi.AttrDMABufOffset, m.offset)
	call.Constant(abi.AttrDMABufLength, m.length)
	call.Constant(abi.AttrDMABufIOVA, m.iova)
	*abi.ViewAt[int32](page, abi.PageIn) = m.fd
	call.In(abi.AttrDMABufFD, abi.PageIn, 4)
	*abi.ViewAt[uint32](page, abi.PageIn+8) = uint32(m.access)
	call.In(abi.AttrDMABufAccess, abi.PageIn+8, 4)
	call.Out(abi.AttrDMABufOutLKey, abi.PageOut, 4)
	call.Out(abi.AttrDMABufOutRKey, abi.PageOut+8, 4)
	return call
}

// hasDMABuf finds out whether the driver takes DMA buffers, by a descriptor
// that is none.
func (d *device) hasDMABuf() bool {
	p, err := d.allocPD()
	if err != nil {
		return false
	}
	defer p.Dealloc()
	err = d.method(regDMABufName, func(page []byte) abi.Call {
		return layDMABuf(page, regDMABuf{pd: p.handle, fd: -1, length: uint64(pages.Size), access: verbs.AccessLocalWrite})
	}, nil)
	return errors.Is(err, unix.EBADF)
}
