package verbs

import "fmt"

// DM is memory of the device itself (ibv_alloc_dm): there is little of it, and what peers
// read and write there does not cross the bus. Requests name it by an MR of RegisterDM, and
// the process copies to it and from it. Its methods may be called at the same time; what of
// bytes that are written and read at the same time is seen the device decides.
type DM struct {
	ctx    *Context
	drv    DMDriver
	length int
}

// AllocDM takes memory of the device, which has DeviceAttr.MaxDMSize bytes in all. What it
// holds at first is undefined: the kernel's driver for ConnectX does not clear it, and it may
// have been another process's. The error wraps ErrUnsupported on a device without
// CapDeviceMemory, ErrInvalid for more bytes than that, and is the system's if others have them.
func (c *Context) AllocDM(length int) (*DM, error) {
	const op = "allocate device memory"
	d, ok := c.drv.(DeviceMemoryDriver)
	if !ok || !c.attr.Caps.Has(CapDeviceMemory) {
		return nil, c.wrap(op, ErrUnsupported)
	}
	if length <= 0 || uint64(length) > c.attr.MaxDMSize {
		return nil, c.wrap(op, fmt.Errorf("%w: %d bytes of %d", ErrInvalid, length, c.attr.MaxDMSize))
	}
	drv, err := charged(c, func() (DMDriver, error) { return d.AllocDM(length) })
	if err != nil {
		return nil, c.wrap(op, err)
	}
	return &DM{ctx: c, drv: drv, length: length}, nil
}

// RegisterDM registers length bytes at offset of dm. Requests name them by addresses from 0
// on (AccessZeroBased, which access has by itself). The MR's Bytes is nil: ReadAt and
// WriteAt of dm are the way to them.
func (pd *PD) RegisterDM(dm *DM, offset, length int, access Access) (*MR, error) {
	const op = "register device memory"
	d, ok := pd.drv.(DMRegionDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapDeviceMemory) {
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	}
	access |= AccessZeroBased
	switch {
	case dm == nil || dm.ctx != pd.ctx:
		return nil, pd.ctx.wrap(op, fmt.Errorf("%w: no memory, or memory of another device", ErrInvalid))
	case access&AccessOnDemand != 0:
		return nil, pd.ctx.wrap(op, fmt.Errorf("%w: memory of the device that is paged in", ErrInvalid))
	}
	if err := dm.check(int64(offset), length); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	if err := checkMR(length, access, &pd.ctx.attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return pd.newWithoutMemory(op, access, func() (MRDriver, error) { return d.RegisterDM(dm.drv, offset, length, access) })
}

func (dm *DM) check(offset int64, length int) error {
	if offset < 0 || offset > int64(dm.length) || int64(length) > int64(dm.length)-offset {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrInvalid, length, offset, dm.length)
	}
	return nil
}

// Context returns the device that has the memory.
func (dm *DM) Context() *Context { return dm.ctx }

// Len returns how many bytes it is.
func (dm *DM) Len() int { return dm.length }

// ReadAt copies from the memory, all of b or nothing. Devices may want offset and length to
// be multiples of some bytes (4 on a ConnectX), and refuse others with ErrInvalid. On a device that
// was removed the error wraps ErrClosed, and what is in b then is no content of the memory.
func (dm *DM) ReadAt(b []byte, offset int64) (int, error) {
	return dm.copy("read device memory", b, offset, dm.drv.Read)
}

// WriteAt copies to the memory, with the limits of ReadAt.
func (dm *DM) WriteAt(b []byte, offset int64) (int, error) {
	return dm.copy("write device memory", b, offset, dm.drv.Write)
}

func (dm *DM) copy(op string, b []byte, offset int64, copy func([]byte, int) error) (int, error) {
	if err := dm.check(offset, len(b)); err != nil {
		return 0, dm.ctx.wrap(op, err)
	}
	if len(b) == 0 {
		return 0, nil
	}
	if err := copy(b, int(offset)); err != nil {
		return 0, dm.ctx.wrap(op, err)
	}
	return len(b), nil
}

// Close gives the memory back. The error wraps ErrBusy while MRs use it, or a copy is under
// way.
func (dm *DM) Close() error { return dm.ctx.ended("free device memory", dm.drv.Free()) }
