//go:build amd64 || arm64

package ibverbs

import (
	"errors"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// probe finds out what the library tells only of objects that were made: the services that
// a device has, and its inline data; whether its driver tells the wall time and shows the clock, resizes CQs,
// changes regions, and makes regions without memory, and memory windows.
func (d *device) probe(attr *verbs.DeviceAttr) error {
	p, err := d.allocPD()
	if err != nil {
		return err
	}
	defer p.Dealloc()
	made, err := d.CreateCQ(&verbs.CQAttr{CQE: 1}, nil)
	if err != nil {
		return err
	}
	defer made.Destroy()
	if made.(*cq).resizable() {
		attr.Caps |= verbs.CapResizeCQ
	}
	if attr.Caps.Has(verbs.CapTimestamps) && d.tellsWallTime() {
		attr.Caps |= verbs.CapWallTime
		d.clock.hz, d.clock.mask = attr.ClockHz, attr.TimestampMask // nobody polls yet
	}
	if _, err := d.readClock(); err == nil && attr.Caps.Has(verbs.CapTimestamps) {
		attr.Caps |= verbs.CapClock
	}
	if attr.Caps.Has(verbs.CapOnDemandPaging) && p.takesAdvice() {
		attr.Caps |= verbs.CapAdviseMR
	}
	if d.extension.allocNullMR != 0 {
		if null, err := p.AllocNullMR(); err == nil && null.Deregister() == nil {
			attr.Caps |= verbs.CapNullMR
		}
	}
	if p.changesRegions() {
		attr.Caps |= verbs.CapReregister
	}
	if attr.KernelCaps&capWindows != 0 && attr.MaxMW > 0 && p.hasWindows() {
		attr.Caps |= verbs.CapMemWindow
	}
	for typ, caps := range map[verbs.QPType]verbs.Cap{verbs.QPTypeUC: verbs.CapUC, verbs.QPTypeUD: verbs.CapUD} {
		if _, err := p.tries(typ, made, 0); err == nil {
			attr.Caps |= caps
		}
	}
	// 256 is what other drivers have too; few devices have more.
	for _, inline := range []int{256, 128, 64, 32} {
		most, err := p.tries(verbs.QPTypeRC, made, inline)
		if err == nil {
			attr.MaxInline = min(most, 256)
			return nil
		}
		if errors.Is(err, verbs.ErrClosed) {
			return err
		}
	}
	return nil
}

// tries makes a QP, and tells how many inline bytes it takes.
func (p *pd) tries(typ verbs.QPType, with verbs.CQDriver, inline int) (int, error) {
	attr := verbs.QPInitAttr{Type: typ, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: inline}}
	q, err := p.CreateQP(&attr, with, with, nil)
	if err != nil {
		return 0, err
	}
	return attr.Cap.MaxInline, q.Destroy()
}

// hasWindows finds out whether the library makes windows of a type.
func (p *pd) hasWindows() bool {
	for _, op := range []int{opAllocMW, opBindMW, opDeallocMW} {
		if p.dev.ops[op] == 0 {
			return false
		}
	}
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		if w, err := p.AllocMW(typ); err == nil {
			return w.Dealloc() == nil
		}
	}
	return false
}

// takesAdvice finds out whether the library has advice for memory on demand.
func (p *pd) takesAdvice() bool {
	made, err := p.AllocMR(1, verbs.AccessOnDemand, verbs.MROptions{})
	if err != nil {
		return false
	}
	defer made.Deregister()
	return p.AdviseMR(verbs.AdvicePrefetch, []verbs.SGE{{Addr: made.Addr(), Length: 1, LKey: made.LKey()}}) == nil
}

// changesRegions finds out whether the library gives regions other rights.
func (p *pd) changesRegions() bool {
	made, err := p.AllocMR(1, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil {
		return false
	}
	defer made.Deregister()
	return made.(*region).Reregister(nil, 0, nil, verbs.AccessLocalWrite, verbs.MRChangeAccess) == nil
}
