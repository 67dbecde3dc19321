package verbs

import (
	"errors"
	"fmt"
)

// MRChange says what MR.Reregister changes (enum ib_uverbs_rereg_mr_flags,
// rdma/ib_user_verbs.h).
type MRChange uint32

// The changes.
const (
	MRChangeMemory MRChange = 1 << 0
	MRChangePD     MRChange = 1 << 1
	MRChangeAccess MRChange = 1 << 2
)

// MRUpdate is what Reregister changes an MR to.
type MRUpdate struct {
	Memory []byte // of the caller
	IOVA   uint64 // with Memory: as for RegisterMRAt; 0: its own address
	PD     *PD    // of the same device
	Access Access // 0: local reading only
}

// Reregister changes the memory, the PD or the rights of an MR that
// RegisterMR or AllocMR made, in one step: no work request may be using it. mask
// says which fields of u count. The
// keys may change: read them again. After an error the MR may only be closed,
// unless it wraps ErrInvalid, ErrPinLimit, ErrBusy (memory windows are bound to it)
// or ErrUnsupported (a device without CapReregister, or an MR without Bytes): it
// is as it was then.
// Its methods must not be called at the same time.
func (mr *MR) Reregister(u MRUpdate, mask MRChange) error {
	const op = "reregister MR"
	ctx := mr.pd.ctx
	mr.mu.Lock()
	defer mr.mu.Unlock()
	d, ok := mr.drv.(ReregisterDriver)
	if !ok || !ctx.attr.Caps.Has(CapReregister) {
		return ctx.wrap(op, ErrUnsupported)
	}
	if mr.closed {
		return ctx.wrap(op, ErrClosed)
	}
	if mr.bytes == nil {
		return ctx.wrap(op, fmt.Errorf("%w: an MR without memory of the process", ErrUnsupported))
	}
	if err := mr.checkChange(&u, mask); err != nil {
		return ctx.wrap(op, err)
	}
	pd, length, access := mr.pd, len(mr.bytes), mr.access
	var pdDrv PDDriver
	var memory []byte
	var iova uint64
	if mask&MRChangeMemory != 0 {
		memory, length, iova = u.Memory, len(u.Memory), u.IOVA
	}
	if mask&MRChangePD != 0 {
		pd, pdDrv = u.PD, u.PD.drv
	}
	if mask&MRChangeAccess != 0 {
		access = u.Access
	}
	if err := checkMR(length, access, &ctx.attr); err != nil {
		return ctx.wrap(op, err)
	}
	if iova != 0 {
		if err := pd.checkIOVA(iova, addressOf(memory), length, access); err != nil {
			return ctx.wrap(op, err)
		}
	}
	counted := countedBytes(length, access)
	more := max(0, counted-mr.pinned) // what is less is free only when the change is made
	if err := pin(more); err != nil {
		return ctx.wrap(op, err)
	}
	if err := d.Reregister(memory, iova, pdDrv, access, mask); err != nil {
		unpin(more)
		return ctx.wrap(op, failedChange(err))
	}
	ctx.recount(mr, counted, more)
	mr.pd, mr.access = pd, access
	mr.bytes, mr.addr, mr.lkey, mr.rkey = mr.drv.Bytes(), mr.drv.Addr(), mr.drv.LKey(), mr.drv.RKey()
	return nil
}

func (mr *MR) checkChange(u *MRUpdate, mask MRChange) error {
	switch {
	case mask == 0:
		return fmt.Errorf("%w: nothing to change", ErrInvalid)
	case mask&^(MRChangeMemory|MRChangePD|MRChangeAccess) != 0:
		return fmt.Errorf("%w: unknown changes %#x", ErrInvalid, uint32(mask))
	case mask&MRChangePD != 0 && (u.PD == nil || u.PD.ctx != mr.pd.ctx):
		return fmt.Errorf("%w: no PD, or one of another device", ErrInvalid)
	}
	return nil
}

// failedChange makes an error of what the driver answered. ErrInvalid would say
// that nothing has changed, which is known only if nobody has tried.
func failedChange(err error) error {
	switch {
	case errors.Is(err, ErrUnsupported), errors.Is(err, ErrBusy):
		return err
	case errors.Is(err, ErrInvalid):
		return fmt.Errorf("the region is unusable now: %v", err)
	}
	return fmt.Errorf("the region is unusable now: %w", err)
}
