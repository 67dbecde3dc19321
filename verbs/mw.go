package verbs

import "fmt"

// MWType is the kind of a memory window (enum ib_uverbs_mw_type,
// rdma/ib_user_verbs.h, counts from 1 too).
type MWType uint8

// The kinds of window.
const (
	MWType1 MWType = 1 // bound to a PD, the device chooses each rkey
	MWType2 MWType = 2 // bound to a QP, the caller chooses the low byte of each rkey
)

// MW is a memory window: a part of an MR that gets rights and a key of its
// own with a work request (BIND_MW), and loses them with another. On the software
// HCA (package verbs/soft) it bounds what work requests may do, but a process of the
// peer that breaks the rules reaches all of the MR, with the rights of the window.
type MW struct {
	pd  *PD
	drv MWDriver
	typ MWType
}

// AllocMW makes a window that covers nothing. The error wraps ErrUnsupported
// on a device without CapMemWindow, or that has no windows of this type.
func (pd *PD) AllocMW(typ MWType) (*MW, error) {
	const op = "allocate MW"
	d, ok := pd.drv.(WindowDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapMemWindow) {
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	}
	if typ != MWType1 && typ != MWType2 {
		return nil, pd.ctx.wrap(op, fmt.Errorf("%w: memory window of type %d", ErrInvalid, typ))
	}
	drv, err := charged(pd.ctx, func() (MWDriver, error) { return d.AllocMW(typ) })
	if err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return &MW{pd: pd, drv: drv, typ: typ}, nil
}

// RKey returns the key of a window of type 1: that of the bind that was posted last, or on the
// software HCA executed last (see Bind), or else that which it was made with. For a window of type
// 2 it is the last of these always: when it is bound it has the one of its Bind.
func (mw *MW) RKey() uint32 { return mw.drv.RKey() }

// Type returns the kind of the window.
func (mw *MW) Type() MWType { return mw.typ }

// Driver returns the provider's object.
func (mw *MW) Driver() MWDriver { return mw.drv }

// Close frees the window; its keys end.
func (mw *MW) Close() error { return mw.pd.ctx.ended("deallocate MW", mw.drv.Dealloc()) }
