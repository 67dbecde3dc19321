//go:build amd64 || arm64

// Package mlx5 drives ConnectX devices. It has run on a model of the device only.
//
// Queues are memory of this process that the device reads. Each has a doorbell
// record, which says how far it is filled, and the device is told to look by a
// store of eight bytes to a register in a page of it that is mapped here (a bfreg in a UAR).
// No request and no completion takes a system call.
package mlx5

import (
	"fmt"
	"math/bits"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// Driver is the driver of ConnectX devices (drivers/infiniband/hw/mlx5 of the
// kernel, rdma/mlx5-abi.h).
type Driver struct {
	// BlueFlame has a request that is posted alone written to the device's register too, from
	// where the device takes it without reading it from memory. See blueFlame.
	BlueFlame bool
}

// Registers of a page (UAR): the doorbell of CQs, and four bfregs for QPs, of which two
// count as the context's.
const (
	pageSize      = 4096
	cqDoorbell    = 0x20
	firstBfreg    = 0x800
	bfregsPerUAR  = 4
	countedPerUAR = 2
)

// bfregs is how many the context has, and lowLatency how many of them for one
// QP each. The library of rdma-core asks for as many by default.
const (
	bfregs     = 16
	lowLatency = 4
)

// context is an open device.
type context struct {
	mem  driver.Memory
	out  contextOut
	uars [][]byte // mapped
	// clockInfo is a page with one, nil if the kernel has none.
	clockInfo []byte
	coreClock coreClock
	// combines says that the UARs are mapped so that stores are combined, for
	// BlueFlame. They are not cached otherwise. A page that is mapped in both ways has
	// that of the first in both.
	combines   bool
	blueFlames []*blueFlame // by number, if combines; nil is a bfreg for doorbells alone
	// ethernet says that the ports are not InfiniBand's. Describe finds out.
	ethernet bool
	xrc      xrcSRQs
	// largestCQ is how many entries the device has for a CQ, 0 before Describe.
	largestCQ int
}

// Open maps the UARs that the kernel has set aside for the context.
func (d Driver) Open(mem driver.Memory, getContext func(driver.Udata) error) (driver.Context, error) {
	c := &context{mem: mem}
	in := contextIn{totalNumBfregs: bfregs, numLowLatencyBfregs: lowLatency, maxCQEVersion: 1, libCaps: capPages4K}
	if err := getContext(driver.Udata{In: abi.BytesOf(&in), Out: abi.BytesOf(&c.out)}); err != nil {
		return nil, err
	}
	c.xrc.byNumber = c.out.cqeVersion == 0
	c.combines = d.BlueFlame && c.hasBlueFlame()
	if err := c.mapUARs(); err != nil {
		c.Close()
		return nil, err
	}
	if c.combines {
		c.findBlueFlames()
	}
	c.mapClockInfo()
	return c, nil
}

// hasBlueFlame reports whether bfregs take WQEs. The kernel gives them no size if the device does
// not do that, or the machine does not combine stores (main.c, set_ucontext_resp). Then there is
// one in a page, a doorbell, that all QPs of the page share.
func (c *context) hasBlueFlame() bool { return c.out.bfRegSize != 0 }

func (c *context) mapUARs() error {
	o := &c.out
	// A bfreg that takes WQEs is two halves with room for a doorbell each, at least.
	badSize := c.hasBlueFlame() && (o.bfRegSize < 16 || o.bfRegSize > (pageSize-firstBfreg)/bfregsPerUAR || bits.OnesCount32(o.bfRegSize) != 1)
	if o.logUARSize != 12 || o.uarsPerPage != 1 || badSize || o.totBfregs < countedPerUAR || o.totBfregs > 1<<10 {
		return fmt.Errorf("%w: the device has %d bfregs of %d bytes in UARs of 2^%d, %d of those in one of the machine's",
			verbs.ErrUnsupported, o.totBfregs, o.bfRegSize, o.logUARSize, o.uarsPerPage)
	}
	command := uint32(mmapNonCached)
	if c.combines {
		command = mmapRegular
	}
	for i := range o.totBfregs / countedPerUAR {
		page, err := c.mem.Map(uint64(command<<8|i)*pageSize, pageSize, driver.MayWrite)
		if err != nil {
			return err
		}
		c.uars = append(c.uars, page)
	}
	return nil
}

// findBlueFlames finds the bfregs that take WQEs. To the kernel and rdma-core the first is
// for doorbells alone (NUM_NON_BLUE_FLAME_BFREGS of hw/mlx5), which need no alternation
// between halves and no lock.
func (c *context) findBlueFlames() {
	size := int(c.out.bfRegSize)
	for _, page := range c.uars {
		for i := range bfregsPerUAR {
			c.blueFlames = append(c.blueFlames, newBlueFlame(page[firstBfreg+i*size:][:size]))
		}
	}
	c.blueFlames[0] = nil
}

// ring stores a word of a doorbell record, and a doorbell to a register of a UAR.
func (c *context) ring(record *uint32, value uint32, register *uint64, doorbell uint64) {
	if !c.combines {
		storeDoorbell(record, value, register, doorbell)
		return
	}
	storeRecord(record, value)
	storeCombined(register, doorbell)
}

// NullKey is the key of no memory, which the device has for all PDs.
func (c *context) NullKey() (uint32, bool) {
	return c.out.dumpFillMKey, c.out.compMask&hasDumpFillMKey != 0
}

// Close unmaps the UARs and the clock's pages.
func (c *context) Close() {
	c.coreClock.close(c.mem)
	if c.clockInfo != nil {
		c.mem.Unmap(c.clockInfo)
		c.clockInfo = nil
	}
	for _, page := range c.uars {
		c.mem.Unmap(page)
	}
	c.uars, c.blueFlames = nil, nil
}

// bfreg is the doorbell of a QP, by the number that the kernel has given it.
func (c *context) bfreg(index uint32) (*uint64, error) {
	page := index / bfregsPerUAR
	if page >= uint32(len(c.uars)) {
		return nil, fmt.Errorf("%w: the kernel gives bfreg %d of a context with %d UARs", verbs.ErrInvalid, index, len(c.uars))
	}
	return abi.ViewAt[uint64](c.uars[page], int(firstBfreg+index%bfregsPerUAR*c.out.bfRegSize)), nil
}

// Udata is the room for the number of a PD, which nobody needs.
func (*context) Udata(cmd abi.Command) driver.Udata {
	if cmd == abi.CmdAllocPD {
		return driver.Udata{Out: abi.BytesOf(new(allocPDOut))}
	}
	return driver.Udata{}
}

// Bounds of a queue, whatever the device allows.
const (
	maxEntries = 1 << 22
	maxInline  = 256
	maxSGE     = 16
)

// Describe adds what the queues of this driver can do. A CQ is a power of two of entries, of which
// one stays free and some are the driver's.
func (c *context) Describe(attr *verbs.DeviceAttr) {
	attr.Caps |= verbs.CapSendWithImm | verbs.CapSendWithInv | verbs.CapWriteWithImm | verbs.CapRead | verbs.CapUC | verbs.CapUD | verbs.CapResizeCQ | verbs.CapIOVA
	c.ethernet = attr.Transport == verbs.TransportRoCE
	if c.clockInfo != nil {
		attr.Caps |= verbs.CapWallTime
	}
	if attr.Caps.Has(verbs.CapTimestamps) && c.hasCoreClock() {
		attr.Caps |= verbs.CapClock
	}
	if _, ok := c.NullKey(); ok {
		attr.Caps |= verbs.CapNullMR
	}
	if c.hasBlueFlame() {
		attr.Caps |= verbs.CapBlueFlame
	}
	attr.MaxInline = maxInline
	c.largestCQ = roundUp(min(attr.MaxCQE+1, maxEntries)+1) / 2
	attr.MaxCQE = max(c.largestCQ-1-minReserved, 0)
	attr.MaxSGE, attr.MaxSGERead, attr.MaxSRQSGE = min(attr.MaxSGE, maxSGE), min(attr.MaxSGERead, maxSGE), min(attr.MaxSRQSGE, maxSGE)
	attr.MaxQPWR = min(attr.MaxQPWR, int(c.out.maxRecvWR), int(c.out.maxSendBlocks)/sendBlocks(verbs.QPTypeUD, verbs.QPCap{MaxSendSGE: maxSGE, MaxInline: maxInline}))
}

// roundUp is the next power of two.
func roundUp(n int) int {
	size := 1
	for size < n {
		size <<= 1
	}
	return size
}
