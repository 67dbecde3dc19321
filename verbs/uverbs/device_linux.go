package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/netpoll"
	"github.com/seed-b9b531af/ramjet/verbs/internal/pages"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// device is an open context of a kernel device.
//
// Lock order, outermost first: of the objects qp.life, qp.modify, qp.groups, qp.send,
// qp.recv, ending.mu, srq.mu, cq.mu, and those of the others; then life, and
// last mu. A command holds life for reading, so that the descriptor is not
// closed under it; it may be given under locks of objects, so Close does not
// hold life while it takes them.
type device struct {
	entry  rdmahost.Device
	driver driver.Context // nil until the kernel has a context
	// submit hands a command to the kernel: that of file, but tests have a
	// kernel of their own.
	submit      func(page []byte, r *abi.Request) error
	compVectors int

	life   sync.RWMutex
	file   abi.File // its descriptor is guarded by life
	closed bool     // guarded by life

	numbers    numbers // those of QPs that are being destroyed
	srqNumbers numbers // the same of SRQs of XRC domains

	windows atomic.Int32 // memory windows that are there: only then posts look for binds

	// gone: the device was removed. Nothing is expected of the kernel any
	// more, but to take back what it gave.
	gone atomic.Bool

	events *netpoll.Events

	mu      sync.Mutex
	nextID  uint64            // guarded by mu
	objects map[uint64]object // guarded by mu: all that is open, nil once closed
	closing bool              // guarded by mu: between that and the end of the kernel's context
	late    []object          // guarded by mu: what was made meanwhile, for the memory that it is of
	freed   [][]byte          // guarded by mu: memory of what was closed meanwhile
}

// object is whatever is made from a device. abandon lets go of its memory and
// makes all its methods fail; the kernel has destroyed, or will destroy, what
// it knows of it. It may be called more than once.
type object interface{ abandon() }

// openDevice opens a device that discovery has found.
func openDevice(entry rdmahost.Device) (*device, error) {
	drv, err := driverOf(entry)
	if err != nil {
		return nil, err
	}
	fd, err := entry.Open()
	if err != nil {
		return nil, err
	}
	d := newDevice(entry, fd)
	if err := d.openContext(drv); err != nil {
		unix.Close(fd)
		return nil, err
	}
	d.events.Start(d.readEvents, d.lost)
	return d, nil
}

// openContext opens both sides of the context, and the descriptor of its events.
// If it fails, only the descriptor of the device is left to be closed.
func (d *device) openContext(drv driver.Driver) error {
	asyncFD := -1
	ctx, err := drv.Open(d, func(u driver.Udata) (err error) {
		asyncFD, err = d.getContext(u)
		return err
	})
	if err != nil {
		if asyncFD >= 0 {
			unix.Close(asyncFD)
		}
		return err
	}
	file, err := pollable(asyncFD, "asynchronous events")
	if err != nil {
		ctx.Close()
		return err
	}
	d.events.Open(file, d.entry.Node)
	d.driver = ctx
	return nil
}

// newDevice is a device that the kernel has no context of yet. It can be
// removed already.
func newDevice(entry rdmahost.Device, fd int) *device {
	d := &device{entry: entry, file: abi.File{FD: fd, DriverID: uint32(entry.DriverID)}, objects: make(map[uint64]object)}
	d.submit = d.file.Submit
	d.numbers.changed.L, d.srqNumbers.changed.L = &d.numbers.mu, &d.srqNumbers.mu
	d.events = netpoll.NewEvents()
	return d
}

// getContext makes the kernel's side of the context. It is the first command,
// and finds out by which way commands go.
func (d *device) getContext(u driver.Udata) (asyncFD int, err error) {
	var out abi.GetContextOut
	in := abi.ResponseOnly{}
	err = d.commandUdata(abi.CmdGetContext, abi.BytesOf(&in), abi.BytesOf(&out), u)
	if err != nil && abi.NoIoctl(err) {
		d.file.ByWrite = true
		err = d.commandUdata(abi.CmdGetContext, abi.BytesOf(&in), abi.BytesOf(&out), u)
	}
	if err != nil {
		return -1, err
	}
	d.compVectors = int(out.NumCompVectors)
	return int(int32(out.AsyncFD)), nil
}

// add lists an object under a new id, which is its user handle at the kernel.
func (d *device) add(o object) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.objects == nil {
		if d.closing {
			d.late = append(d.late, o)
		}
		return 0, verbs.ErrClosed
	}
	d.nextID++
	d.objects[d.nextID] = o
	return d.nextID, nil
}

// drop takes an object off the list.
func (d *device) drop(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.objects, id)
}

// undo destroys at the kernel an object whose making has failed since, and releases its memory. If the kernel
// keeps it, the list does too, under a new id, until Close: a mapping that is left would keep the
// kernel's context.
func (d *device) undo(o object, destroyAtKernel func() error, release func()) {
	if destroyed(destroyAtKernel()) { // the first error is the one to tell
		release()
		return
	}
	_, _ = d.add(o) // fails once Close has begun, which took o with the list then
}

// find returns the object whose id the kernel named, nil if it is gone.
func (d *device) find(id uint64) object {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.objects[id]
}

// all returns what is open.
func (d *device) all() []object {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]object, 0, len(d.objects))
	for _, o := range d.objects {
		list = append(list, o)
	}
	return list
}

// errGone is the error of everything on a device that was removed.
var errGone = netpoll.ErrGone

// lost is called when it shows that the device was removed: completions that
// were asked for never come. Those who wait are woken and told.
func (d *device) lost() {
	if d.gone.Swap(true) {
		return
	}
	d.events.Raise(verbs.DriverEvent{Type: verbs.EventDeviceFatal})
	for _, o := range d.all() {
		if ch, ok := o.(*channel); ok {
			ch.Wake()
		}
	}
}

// Close tears down what is open. Memory that peers or the device write to is
// unmapped only after the kernel has let go of it.
func (d *device) Close() error {
	d.life.Lock() // ends with the commands that run
	if d.closed {
		d.life.Unlock()
		return verbs.ErrClosed
	}
	d.closed = true // no command destroys anything from now on
	d.mu.Lock()
	list := d.objects
	d.objects, d.closing = nil, true
	d.mu.Unlock()
	d.life.Unlock()

	for _, o := range list {
		o.abandon()
	}
	d.events.Close()
	d.driver.Close()
	// No mapping is left, nor a child process that has yet to call execve, so this is the last that
	// the kernel's context hangs on: it destroys everything before close returns.
	syscall.ForkLock.RLock()
	err := unix.Close(d.file.FD)
	syscall.ForkLock.RUnlock()
	runtime.KeepAlive(list) // and so what regions of the caller's memory are of
	d.mu.Lock()
	freed := d.freed
	d.freed, d.late, d.closing = nil, nil, false
	d.mu.Unlock()
	for _, mem := range freed {
		pages.Unmap(mem)
	}
	d.file.FreePrepared()
	if err != nil {
		return os.NewSyscallError("close", err)
	}
	return nil
}

func (d *device) NextEvent() (verbs.DriverEvent, error) { return d.events.Next() }

func (d *device) QueryDevice() (verbs.DeviceAttr, error) {
	var ex abi.ExQueryDeviceOut
	err := d.command(abi.CmdExQueryDevice, abi.BytesOf(&abi.ExQueryDeviceIn{}), abi.BytesOf(&ex))
	if errors.Is(err, verbs.ErrUnsupported) || errors.Is(err, verbs.ErrInvalid) {
		err = d.command(abi.CmdQueryDevice, abi.BytesOf(&abi.ResponseOnly{}), abi.BytesOf(&ex.Base))
	}
	if err != nil {
		return verbs.DeviceAttr{}, err
	}
	attr := deviceAttr(&ex)
	attr.DeviceInfo = d.entry.Info()
	attr.Experimental = Experimental(d.entry.Driver)
	attr.NodeGUID = binary.BigEndian.Uint64(ex.Base.NodeGUID[:])
	attr.CompVectors = d.compVectors
	if d.entry.Firmware != "" {
		attr.FirmwareVersion = d.entry.Firmware
	}
	attr.Caps = d.probe(&attr)
	if ex.Base.MaxMcastGrp > 0 {
		attr.Caps |= verbs.CapMulticast
	}
	if ex.Base.AtomicCap != 0 {
		attr.Caps |= verbs.CapAtomics
	}
	d.driver.Describe(&attr)
	if !attr.Caps.Has(verbs.CapDeviceMemory) {
		attr.MaxDMSize = 0
	}
	return attr, nil
}

// probe finds out which commands the driver of the device has.
func (d *device) probe(attr *verbs.DeviceAttr) verbs.Cap {
	caps := verbs.CapRegisterSlice
	if attr.MaxSRQ > 0 && attr.MaxSRQWR > 0 {
		caps |= verbs.CapSRQ
	}
	if attr.MaxMW > 0 && attr.KernelCaps&(abi.KernelCapMemWindow|abi.KernelCapWindow2A|abi.KernelCapWindow2B) != 0 {
		caps |= verbs.CapMemWindow
	}
	if _, ok := d.driver.(driver.XRCContext); ok && attr.KernelCaps&abi.KernelCapXRC != 0 {
		caps |= verbs.CapXRC
	}
	// Methods are not there where commands go by write(2).
	if _, ok := d.driver.(driver.MemoryContext); ok && attr.MaxDMSize > 0 && !d.file.ByWrite {
		caps |= verbs.CapDeviceMemory
	}
	if attr.MaxModerationCount > 0 && attr.MaxModerationPeriod > 0 {
		caps |= verbs.CapModerateCQ
	}
	if attr.ClockHz > 0 && attr.TimestampMask > 0 {
		caps |= verbs.CapTimestamps
	}
	if attr.ODP.General.Has(verbs.ODPSupported) {
		caps |= verbs.CapOnDemandPaging
		if attr.ODP.General.Has(verbs.ODPImplicit) {
			caps |= verbs.CapRegisterAll
		}
		if !d.file.ByWrite && d.takesAdvice() {
			caps |= verbs.CapAdviseMR
		}
	}
	// A command that the driver lacks is refused before its arguments are
	// looked at; there is no object of this handle.
	const noHandle = 1<<32 - 1
	rereg := abi.ReregMRIn{Handle: noHandle, Flags: uint32(verbs.MRChangeAccess)}
	if has(d.command(abi.CmdReregMR, abi.BytesOf(&rereg), abi.BytesOf(&abi.ReregMROut{}))) {
		caps |= verbs.CapReregister
	}
	resize := abi.ResizeCQIn{Handle: noHandle, CQE: 1}
	if has(d.command(abi.CmdResizeCQ, abi.BytesOf(&resize), abi.BytesOf(&abi.ResizeCQOut{}))) {
		caps |= verbs.CapResizeCQ
	}
	if d.hasDMABuf() {
		caps |= verbs.CapDMABuf
	}
	return caps
}

// has reports whether a command that had to fail failed for its arguments.
func has(err error) bool {
	return !errors.Is(err, verbs.ErrUnsupported) && !errors.Is(err, verbs.ErrClosed)
}

// deviceAttr translates the kernel's answer.
func deviceAttr(ex *abi.ExQueryDeviceOut) verbs.DeviceAttr {
	q := &ex.Base
	return verbs.DeviceAttr{
		FirmwareVersion:     fmt.Sprintf("%d.%d.%d", q.FwVer>>32, q.FwVer>>16&0xffff, q.FwVer&0xffff),
		VendorID:            q.VendorID,
		VendorPartID:        q.VendorPartID,
		HardwareVersion:     q.HwVer,
		SystemImageGUID:     binary.BigEndian.Uint64(q.SysImageGUID[:]),
		KernelCaps:          uint64(q.DeviceCapFlags) | ex.DeviceCapFlagsEx,
		MaxMRSize:           q.MaxMRSize,
		MaxDMSize:           ex.MaxDMSize,
		MaxQP:               int(int32(q.MaxQP)),
		MaxQPWR:             int(int32(q.MaxQPWR)),
		MaxSGE:              int(int32(q.MaxSGE)),
		MaxSGERead:          int(int32(q.MaxSGERead)),
		MaxCQ:               int(int32(q.MaxCQ)),
		MaxCQE:              int(int32(q.MaxCQE)),
		MaxMR:               int(int32(q.MaxMR)),
		MaxPD:               int(int32(q.MaxPD)),
		MaxSRQ:              int(int32(q.MaxSRQ)),
		MaxSRQWR:            int(int32(q.MaxSRQWR)),
		MaxSRQSGE:           int(int32(q.MaxSRQSGE)),
		MaxMW:               int(int32(q.MaxMW)),
		MaxAH:               int(int32(q.MaxAH)),
		MaxQPInitRdAtomic:   int(int32(q.MaxQPInitRdAtom)),
		MaxQPRdAtomic:       int(int32(q.MaxQPRdAtom)),
		PhysPorts:           int(q.PhysPortCnt),
		AckDelay:            q.LocalCAAckDelay,
		ClockHz:             ex.HCACoreClock * 1000,
		TimestampMask:       ex.TimestampMask,
		MaxModerationCount:  int(ex.MaxModCount),
		MaxModerationPeriod: time.Duration(ex.MaxModPeriod) * time.Microsecond,
		ODP: verbs.ODPCaps{
			General: verbs.ODPGeneral(ex.ODP.General),
			RC:      verbs.ODPOps(ex.ODP.RC), UC: verbs.ODPOps(ex.ODP.UC), UD: verbs.ODPOps(ex.ODP.UD), XRC: verbs.ODPOps(ex.XRCODP),
		},
	}
}

// WallTime asks the driver, which may read memory that Close unmaps.
func (d *device) WallTime(ticks uint64) (time.Time, error) {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return time.Time{}, verbs.ErrClosed
	}
	if c, ok := d.driver.(driver.WallTimeContext); ok {
		return c.WallTime(ticks)
	}
	return time.Time{}, verbs.ErrUnsupported
}

// Clock asks the driver. The kernel replaces pages of a device that was removed with zeros, and one
// that was pulled out answers with all ones until then.
func (d *device) Clock() (uint64, error) {
	c, ok := d.driver.(driver.ClockContext)
	if !ok {
		return 0, verbs.ErrUnsupported
	}
	ticks, err := c.Clock()
	switch {
	case err == nil && ticks == 1<<64-1:
		err = errGone
	case err == nil && ticks == 0:
		err = d.command(abi.CmdQueryDevice, abi.BytesOf(&abi.ResponseOnly{}), abi.BytesOf(&abi.QueryDeviceOut{}))
	}
	if err != nil {
		return 0, err
	}
	return ticks, nil
}

// RNRs reads the driver's counter, of all ports.
func (d *device) RNRs() (count uint64, counted bool) { return rdmahost.RNRs(d.entry.Name) }

func (d *device) QueryPort(port uint8) (verbs.PortAttr, error) {
	if port == 0 {
		return verbs.PortAttr{}, fmt.Errorf("%w: ports count from 1", verbs.ErrInvalid)
	}
	var out abi.QueryPortOut
	if err := d.command(abi.CmdQueryPort, abi.BytesOf(&abi.QueryPortIn{PortNum: port}), abi.BytesOf(&out)); err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		State: verbs.PortState(out.State), MaxMTU: verbs.MTU(out.MaxMTU), ActiveMTU: verbs.MTU(out.ActiveMTU),
		GIDTableLen: int(int32(out.GIDTblLen)), MaxMsgSize: out.MaxMsgSize, LID: out.LID, LinkLayer: out.LinkLayer,
		PhysState: out.PhysState, ActiveWidth: out.ActiveWidth, ActiveSpeed: out.ActiveSpeed,
		SMLID: out.SMLID, LMC: out.LMC, PKeyTblLen: out.PKeyTblLen,
	}, nil
}

// command runs a command without a driver's part.
func (d *device) command(cmd abi.Command, in, out []byte) error {
	return d.run(&abi.Request{Cmd: cmd, In: in, Out: out})
}

// commandUdata runs a command with what the driver adds to it.
func (d *device) commandUdata(cmd abi.Command, in, out []byte, u driver.Udata) error {
	return d.run(&abi.Request{Cmd: cmd, In: in, Out: out, UdataIn: u.In, UdataOut: u.Out})
}

// run runs a command. It ends when the kernel has done it; registering
// memory may take its time.
func (d *device) run(r *abi.Request) error {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return verbs.ErrClosed
	}
	p, err := abi.TakePage()
	if err != nil {
		return err
	}
	defer abi.ReturnPage(p)
	err = d.submit(p, r)
	if errno, ok := err.(unix.Errno); ok {
		if c, ok := d.driver.(driver.ErrnoContext); ok {
			err = c.Errno(r.Cmd, errno)
		}
	}
	if err != nil {
		return d.failed(r.Cmd.String(), err)
	}
	return nil
}

// method runs a method of the ioctl interface, which lay lays out on a page. answer, if it is not
// nil, looks at what the kernel has answered there.
func (d *device) method(name string, lay func(page []byte) abi.Call, answer func(*abi.Call)) error {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return verbs.ErrClosed
	}
	page, err := abi.TakePage()
	if err != nil {
		return err
	}
	defer abi.ReturnPage(page)
	call := lay(page)
	if err := call.Run(&d.file); err != nil {
		return d.failed(name, err)
	}
	if answer != nil {
		answer(&call)
	}
	return nil
}

// failed makes an error of what the kernel answered to a named operation. It is nil if err is.
func (d *device) failed(op string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case unix.EIO:
		if d.isGone() {
			d.lost()
			return fmt.Errorf("%s: %w", op, errGone)
		}
	case unix.EBUSY:
		return fmt.Errorf("%s: %w", op, verbs.ErrBusy)
	case unix.EINVAL:
		return fmt.Errorf("%s: %w: %w", op, verbs.ErrInvalid, errno)
	case unix.EPROTONOSUPPORT, unix.ENOTTY:
		return fmt.Errorf("%s: %w: %w", op, verbs.ErrUnsupported, errno)
	}
	return fmt.Errorf("%s: %w", op, errno)
}

// isGone asks the kernel. EIO is what it answers to everything but what destroys
// an object once it has let go of the device (drivers/infiniband/core/rdma_core.c),
// but a driver may have other reasons for it too. The caller makes sure that the
// descriptor is open.
func (d *device) isGone() bool { return errors.Is(d.answers(), unix.EIO) }

// answers is the kernel's answer to a question that it always answers while there is a device. The
// caller makes sure that the descriptor is open.
func (d *device) answers() error {
	p, err := abi.TakePage()
	if err != nil {
		return err
	}
	defer abi.ReturnPage(p)
	r := abi.Request{Cmd: abi.CmdQueryDevice, In: abi.BytesOf(&abi.ResponseOnly{}), Out: abi.BytesOf(&abi.QueryDeviceOut{})}
	return d.file.Submit(p, &r)
}

// Map maps a queue. A child process that is not meant to have it does not
// inherit it.
func (d *device) Map(offset uint64, size int, may driver.Protection) ([]byte, error) {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return nil, verbs.ErrClosed
	}
	if size <= 0 || int64(size) > maxQueue {
		return nil, fmt.Errorf("%w: kernel asks for a mapping of %d bytes", verbs.ErrInvalid, size)
	}
	prot := 0
	if may&driver.MayRead != 0 {
		prot |= unix.PROT_READ
	}
	if may&driver.MayWrite != 0 {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(d.file.FD, int64(offset), size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, d.failed("mmap", err)
	}
	_ = unix.Madvise(mem, unix.MADV_DONTFORK) // refused only by kernels that do not know it
	return mem[:size:size], nil
}

// Alloc maps memory that is the process's own.
func (d *device) Alloc(size int) ([]byte, error) {
	mem, err := pages.Map(size, false)
	if err != nil {
		return nil, err
	}
	return mem[:size], nil
}

// maxQueue bounds a mapping: 2^20 requests of 2 KiB.
const maxQueue = 1 << 31

func (d *device) Unmap(mem []byte) {
	_ = unix.Munmap(mem[:cap(mem)]) // fails only for memory that is not mapped
}

// Free frees what Alloc, or pages.Map, has returned: during Close when the kernel has destroyed what lies
// there. Until then the device may look there, and the next mapping of the process would have the address.
func (d *device) Free(mem []byte) {
	mem = mem[:cap(mem)]
	d.mu.Lock()
	closing := d.closing
	if closing {
		d.freed = append(d.freed, mem)
	}
	d.mu.Unlock()
	if !closing {
		pages.Unmap(mem)
	}
}
