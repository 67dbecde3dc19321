package verbs

import (
	"fmt"
	"math"
	"os"
	"sync"
	"unsafe"
)

// Access is the set of rights of an MR or a QP (enum
// ib_uverbs_access_flags, rdma/ib_user_ioctl_verbs.h).
type Access uint32

// The access rights, numbered as the kernel numbers them.
const (
	AccessLocalWrite   Access = 1 << 0 // the device may write into it: what peers SEND, what READ and atomics fetch
	AccessRemoteWrite  Access = 1 << 1 // peers may WRITE; with AccessLocalWrite only
	AccessRemoteRead   Access = 1 << 2 // peers may READ
	AccessRemoteAtomic Access = 1 << 3 // peers may CMP_AND_SWP and FETCH_AND_ADD; with AccessLocalWrite only
	AccessMWBind       Access = 1 << 4 // memory windows may be bound to it; see MW for what they bound
	AccessZeroBased    Access = 1 << 5 // its addresses count from 0
	AccessOnDemand     Access = 1 << 6 // it is not pinned; for devices with CapOnDemandPaging
	AccessHugeTLB      Access = 1 << 7 // with AccessOnDemand: the memory is of huge pages
	// AccessFlushGlobal and AccessFlushPersistent let peers FLUSH.
	AccessFlushGlobal     Access = 1 << 8
	AccessFlushPersistent Access = 1 << 9
	// AccessRelaxedOrdering lets the device write out of order. The kernel
	// ignores it on devices that cannot.
	AccessRelaxedOrdering Access = 1 << 20

	accessFlush  = AccessFlushGlobal | AccessFlushPersistent
	accessRemote = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | accessFlush
	accessKnown  = AccessLocalWrite | accessRemote | AccessMWBind | AccessZeroBased | AccessOnDemand |
		AccessHugeTLB | AccessRelaxedOrdering
)

// Remote reports whether a peer may reach the memory.
func (a Access) Remote() bool { return a&accessRemote != 0 }

// MROptions are wishes for AllocMR; the zero value is ready to use.
type MROptions struct {
	// HugePages asks for huge pages and falls back to ordinary ones.
	HugePages bool
	// Sparse lets the memory come on use, as far as the device allows: for what
	// may never be used as a whole. The bytes count as pinned all the same.
	Sparse bool
	// OnePeer says that the peer of one QP alone will use the rkey, and no window will
	// be bound: others may be refused. The software HCA keeps a descriptor of the process
	// for all other memory that peers may reach.
	OnePeer bool
	// IOVA is the address by which work requests name the first byte, of a device with CapIOVA:
	// a multiple of the page size. 0 is that of the memory.
	IOVA uint64
}

// PD is a protection domain: QPs and MRs work together only within one.
type PD struct {
	ctx *Context
	drv PDDriver
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	drv, err := charged(c, c.drv.AllocPD)
	if err != nil {
		return nil, c.wrap("allocate PD", err)
	}
	return &PD{ctx: c, drv: drv}, nil
}

// Context returns the device that the PD belongs to.
func (pd *PD) Context() *Context { return pd.ctx }

// Close frees the PD. The error wraps ErrBusy while MRs, QPs or SRQs use it.
func (pd *PD) Close() error { return pd.ctx.ended("deallocate PD", pd.drv.Dealloc()) }

// MR is a memory region: memory that the device may use, with its keys.
type MR struct {
	pd     *PD
	drv    MRDriver
	access Access
	bytes  []byte
	addr   uint64
	lkey   uint32
	rkey   uint32
	pinned int64 // bytes counted; written with mu and that of ctx

	mu     sync.Mutex
	closed bool // guarded by mu
}

// AllocMR maps length bytes outside the Go heap and registers them. The
// memory is page aligned and zero; the bytes count against the process's cap
// on pinned memory ([SetPinLimit]), but for AccessOnDemand.
func (pd *PD) AllocMR(length int, access Access, opt MROptions) (*MR, error) {
	const op = "allocate MR"
	if opt.IOVA != 0 {
		if err := pd.checkIOVA(opt.IOVA, 0, length, access); err != nil {
			return nil, pd.ctx.wrap(op, err)
		}
	}
	return pd.newMR(op, length, access, func() (MRDriver, error) {
		return pd.drv.AllocMR(length, access, opt)
	})
}

// RegisterMR registers mem, of any alignment, but not empty. It may be of the Go heap: it is
// kept where it is until Close, and counts as pinned, but for AccessOnDemand. A device without
// CapRegisterSlice accepts it for local use only. The error wraps ErrPinLimit or ErrInvalid, or
// what the device says.
func (pd *PD) RegisterMR(mem []byte, access Access) (*MR, error) {
	return pd.newMR("register MR", len(mem), access, func() (MRDriver, error) {
		return pd.drv.RegisterMR(mem, access)
	})
}

// RegisterMRAt is RegisterMR, but work requests name the first byte by the address iova
// (ibv_reg_mr_iova): two processes may give their memory the same addresses. iova is not 0, and
// lies where in a page mem[0] does. The error wraps ErrUnsupported on a device without CapIOVA.
func (pd *PD) RegisterMRAt(mem []byte, iova uint64, access Access) (*MR, error) {
	const op = "register MR"
	d, ok := pd.drv.(IOVADriver)
	if !ok {
		return nil, pd.ctx.wrap(op, fmt.Errorf("%w: addresses of the caller's choice", ErrUnsupported))
	}
	if iova == 0 { // drivers take it for the memory's own address
		return nil, pd.ctx.wrap(op, fmt.Errorf("%w: the address 0", ErrInvalid))
	}
	if err := pd.checkIOVA(iova, addressOf(mem), len(mem), access); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return pd.newMR(op, len(mem), access, func() (MRDriver, error) { return d.RegisterMRAt(mem, iova, access) })
}

// checkIOVA checks the address that memory at the address at is to have.
func (pd *PD) checkIOVA(iova, at uint64, length int, access Access) error {
	page := uint64(os.Getpagesize())
	switch {
	case !pd.ctx.attr.Caps.Has(CapIOVA):
		return fmt.Errorf("%w: addresses of the caller's choice", ErrUnsupported)
	case access&AccessZeroBased != 0:
		return fmt.Errorf("%w: addresses that count from 0, and from %#x", ErrInvalid, iova)
	case iova%page != at%page:
		return fmt.Errorf("%w: address %#x for memory at %#x, which is elsewhere in its page", ErrInvalid, iova, at)
	case length > 0 && iova+uint64(length) < iova:
		return fmt.Errorf("%w: %d bytes from address %#x on", ErrInvalid, length, iova)
	}
	return nil
}

// addressOf is where memory lies, which does not move.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// AllocNullMR makes an MR without memory (ibv_alloc_null_mr): what is read from it is zero,
// and what is written to it is lost. It is for local use: an SGE with its LKey, whatever
// the address, skips bytes of what a peer sends, for instance. Its Bytes are nil, and it
// has no rkey. The LKey may be one of the device, for all such MRs and for ever. The error
// wraps ErrUnsupported on a device without CapNullMR.
func (pd *PD) AllocNullMR() (*MR, error) {
	const op = "allocate null MR"
	d, ok := pd.drv.(NullDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapNullMR) {
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	}
	return pd.newWithoutMemory(op, AccessLocalWrite, d.AllocNullMR)
}

// RegisterAll registers all memory of the process, also what it will have later, and pins
// none of it (implicit on-demand paging: ibv_reg_mr from NULL on, of SIZE_MAX bytes).
// access has AccessOnDemand by itself. Requests name memory by where it lies, for which
// there is SGEOf; Bytes is nil. With rights for peers the rkey lets them at all that the
// process has, its code's data and the stacks of its goroutines, which is to give the
// process away. The error wraps ErrUnsupported on a device without CapRegisterAll.
func (pd *PD) RegisterAll(access Access) (*MR, error) {
	const op = "register all memory"
	d, ok := pd.drv.(AllMemoryDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapRegisterAll) {
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	}
	access |= AccessOnDemand
	if access&AccessZeroBased != 0 {
		return nil, pd.ctx.wrap(op, fmt.Errorf("%w: addresses that count from 0", ErrInvalid))
	}
	if err := checkMR(1, access, &pd.ctx.attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return pd.newWithoutMemory(op, access, func() (MRDriver, error) { return d.RegisterAll(access) })
}

// Advice is what AdviseMR says of memory (enum ib_uverbs_advise_mr_advice,
// rdma/ib_user_ioctl_verbs.h).
type Advice uint32

// The advice.
const (
	AdvicePrefetch        Advice = 0 // it will be read
	AdvicePrefetchWrite   Advice = 1 // it will be written to
	AdvicePrefetchNoFault Advice = 2 // as AdvicePrefetch, of what is in memory
)

// AdviseMR has the device prepare memory of MRs with AccessOnDemand for its use (ibv_advise_mr),
// and returns when it has. The error wraps ErrInvalid if a piece is not of such an MR, and
// ErrUnsupported on a device without CapAdviseMR.
func (pd *PD) AdviseMR(advice Advice, list []SGE) error {
	const op = "advise MR"
	d, ok := pd.drv.(AdviseDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapAdviseMR) {
		return pd.ctx.wrap(op, ErrUnsupported)
	}
	if advice > AdvicePrefetchNoFault || len(list) == 0 {
		return pd.ctx.wrap(op, fmt.Errorf("%w: advice %d on %d pieces", ErrInvalid, advice, len(list)))
	}
	return pd.ctx.wrap(op, d.AdviseMR(advice, list))
}

func (pd *PD) newMR(op string, length int, access Access, make func() (MRDriver, error)) (*MR, error) {
	if err := checkMR(length, access, &pd.ctx.attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	counted := countedBytes(length, access)
	if err := pin(counted); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	drv, err := charged(pd.ctx, make)
	if err != nil {
		unpin(counted)
		return nil, pd.ctx.wrap(op, err)
	}
	mr := &MR{
		pd: pd, drv: drv, access: access, pinned: counted,
		bytes: drv.Bytes(), addr: drv.Addr(), lkey: drv.LKey(), rkey: drv.RKey(),
	}
	if !pd.ctx.keep(mr) {
		unpin(counted)
		return nil, pd.ctx.wrap(op, ErrClosed) // Context.Close has freed it
	}
	return mr, nil
}

// countedBytes is how much of a region is pinned: nothing that is paged in on demand.
func countedBytes(length int, access Access) int64 {
	if access&AccessOnDemand != 0 {
		return 0
	}
	return int64(length)
}

func checkMR(length int, access Access, dev *DeviceAttr) error {
	most := dev.MaxMRSize
	switch {
	case length <= 0:
		return fmt.Errorf("%w: MR of %d bytes", ErrInvalid, length)
	case most != 0 && uint64(length) > most:
		return fmt.Errorf("%w: MR of %d bytes exceeds the device's limit of %d", ErrInvalid, length, most)
	case access&^accessKnown != 0:
		return fmt.Errorf("%w: unknown access rights %#x", ErrInvalid, uint32(access&^accessKnown))
	case access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0:
		// InfiniBand Architecture Specification 10.6.3.1: remote write
		// access without local write access is refused.
		return fmt.Errorf("%w: remote write or atomic access needs local write access", ErrInvalid)
	case access&AccessMWBind != 0 && !dev.Caps.Has(CapMemWindow):
		return fmt.Errorf("%w: memory windows", ErrUnsupported)
	case access&accessFlush != 0 && !dev.Caps.Has(CapFlush):
		return fmt.Errorf("%w: FLUSH", ErrUnsupported)
	case access&AccessOnDemand != 0 && !dev.Caps.Has(CapOnDemandPaging):
		return fmt.Errorf("%w: on-demand paging", ErrUnsupported)
	}
	return nil
}

// RegisterDMABuf registers length bytes at offset of a DMA buffer, for
// instance of a GPU, which work requests name by addresses from iova on. The
// MR's Bytes are nil: the memory is the buffer's, and not counted as pinned.
// The error wraps ErrUnsupported on a device or kernel (before 5.12) without
// CapDMABuf.
func (pd *PD) RegisterDMABuf(fd int, offset uint64, length int, iova uint64, access Access) (*MR, error) {
	const op = "register DMA buffer"
	d, ok := pd.drv.(DMABufDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapDMABuf) {
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	}
	if err := checkMR(length, access, &pd.ctx.attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return pd.newWithoutMemory(op, access, func() (MRDriver, error) { return d.RegisterDMABuf(fd, offset, length, iova, access) })
}

// newWithoutMemory makes an MR that has no memory of the process.
func (pd *PD) newWithoutMemory(op string, access Access, make func() (MRDriver, error)) (*MR, error) {
	drv, err := charged(pd.ctx, make)
	if err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	mr := &MR{pd: pd, drv: drv, access: access, addr: drv.Addr(), lkey: drv.LKey(), rkey: drv.RKey()}
	if !pd.ctx.keep(mr) {
		return nil, pd.ctx.wrap(op, ErrClosed)
	}
	return mr, nil
}

// PD returns the protection domain of the MR.
func (mr *MR) PD() *PD { return mr.pd }

// Bytes returns the memory. It must not be used after Close.
func (mr *MR) Bytes() []byte { return mr.bytes }

// Addr returns the address by which work requests name the first byte.
func (mr *MR) Addr() uint64 { return mr.addr }

// LKey returns the key for local use in an SGE.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey returns the key that a peer needs for remote access.
func (mr *MR) RKey() uint32 { return mr.rkey }

// Access returns the rights that the MR was made with.
func (mr *MR) Access() Access { return mr.access }

// Driver returns the provider's object.
func (mr *MR) Driver() MRDriver { return mr.drv }

// SGE returns the scatter/gather element for n bytes at offset off. It panics
// if they are not inside the MR, as slicing does, or if they are 4 GiB or
// more.
func (mr *MR) SGE(off, n int) SGE {
	_ = mr.bytes[off : off+n : len(mr.bytes)]
	if uint64(n) > math.MaxUint32 {
		panic("verbs: SGE longer than 4 GiB")
	}
	return SGE{Addr: mr.addr + uint64(off), Length: uint32(n), LKey: mr.lkey}
}

// SGEOf returns the scatter/gather element for memory of the process, through an MR that
// RegisterAll has made. The memory has to stay where it is until the request is done: a
// [runtime.Pinner] keeps what is Go's, which may else lie on a stack. SGEOf panics if the
// MR has Bytes, or if mem has 4 GiB or more. Of an MR without Bytes that RegisterAll has not
// made the element names no memory of the process.
func (mr *MR) SGEOf(mem []byte) SGE {
	if mr.bytes != nil {
		panic("verbs: SGEOf of an MR that has its own memory")
	}
	if uint64(len(mem)) > math.MaxUint32 {
		panic("verbs: SGE longer than 4 GiB")
	}
	return SGE{Addr: addressOf(mem), Length: uint32(len(mem)), LKey: mr.lkey}
}

// Close deregisters the MR and, if AllocMR made it, unmaps the memory. Work
// requests that use it must be done before. If it fails, the MR is still open, and peers may
// use the memory; the error wraps ErrBusy if memory windows keep it.
func (mr *MR) Close() error {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if mr.closed {
		return nil
	}
	err := mr.drv.Deregister()
	if !destroyed(err) {
		return mr.pd.ctx.wrap("deregister MR", err)
	}
	mr.closed = true
	if !mr.pd.ctx.drop(mr) {
		return nil // freed with the context
	}
	unpin(mr.pinned)
	return mr.pd.ctx.ended("deregister MR", err)
}
