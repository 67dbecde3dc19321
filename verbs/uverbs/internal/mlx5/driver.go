//go:build amd64 || arm64

// Package mlx5 drives ConnectX devices. It has run on a model of the device only.
//
// Queues are memory of this process that the device reads. Each has a doorbell
// record, which says how far it is filled, and the device is told to look by a
// store of eight bytes to a register, in a page of the device that is mapped here.
// No request and no completion takes a system call.
package mlx5

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// Driver is the driver of ConnectX devices (drivers/infiniband/hw/mlx5 of the
// kernel, rdma/mlx5-abi.h).
type Driver struct{}

// Registers of a page (UAR): that of CQs, and four of QPs.
const (
	pageSize       = 4096
	cqRegister     = 0x20
	firstRegister  = 0x800
	registersOfUAR = 4
)

// registers is how many the context has, and lowLatency how many of them for one
// QP each. The library of rdma-core asks for as many by default.
const (
	registers  = 16
	lowLatency = 4
)

// context is an open device.
type context struct {
	mem  driver.Memory
	out  contextOut
	uars [][]byte // mapped pages of registers, which are not cached
	// largestCQ is how many entries the device has for a CQ, 0 before Describe.
	largestCQ int
}

// Open maps the pages of registers that the kernel has set aside for the context.
func (Driver) Open(mem driver.Memory, getContext func(driver.Extra) error) (driver.Context, error) {
	c := &context{mem: mem}
	in := contextIn{totalRegisters: registers, lowLatency: lowLatency, maxCQEVersion: 1, libCaps: capPages4K}
	if err := getContext(driver.Extra{In: abi.BytesOf(&in), Out: abi.BytesOf(&c.out)}); err != nil {
		return nil, err
	}
	if err := c.mapRegisters(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *context) mapRegisters() error {
	o := &c.out
	if o.logUARSize != 12 || o.uarsPerPage != 1 || o.registerSize == 0 || o.registerSize > (pageSize-firstRegister)/registersOfUAR ||
		o.totalRegisters == 0 || o.totalRegisters > 1<<10 {
		return fmt.Errorf("%w: the device has %d registers of %d bytes in pages of 2^%d, %d of those in one of the machine's",
			verbs.ErrUnsupported, o.totalRegisters, o.registerSize, o.logUARSize, o.uarsPerPage)
	}
	// Two of the four registers of each page count as the context's.
	for i := range o.totalRegisters / 2 {
		page, err := c.mem.Map(uint64(mmapNonCached<<8|i)*pageSize, pageSize, driver.MayWrite)
		if err != nil {
			return err
		}
		c.uars = append(c.uars, page)
	}
	return nil
}

// Close unmaps the registers.
func (c *context) Close() {
	for _, page := range c.uars {
		c.mem.Unmap(page)
	}
	c.uars = nil
}

// register is the doorbell of a QP by the kernel's number.
func (c *context) register(index uint32) (*uint64, error) {
	page := index / registersOfUAR
	if page >= uint32(len(c.uars)) {
		return nil, fmt.Errorf("%w: the kernel gives register %d of a context with %d pages", verbs.ErrInvalid, index, len(c.uars))
	}
	return abi.ViewAt[uint64](c.uars[page], int(firstRegister+index%registersOfUAR*c.out.registerSize)), nil
}

// Extra is the room for the number of a PD, which nobody needs.
func (*context) Extra(cmd abi.Command) driver.Extra {
	if cmd == abi.CmdAllocPD {
		return driver.Extra{Out: abi.BytesOf(new(allocPDOut))}
	}
	return driver.Extra{}
}

// Bounds of a queue, whatever the device allows.
const (
	maxEntries = 1 << 22
	maxInline  = 256
	maxSGE     = 16
)

// Describe leaves out what this driver does not do: windows and keys to
// invalidate, memory that is paged in. A CQ is a power of two of entries,
// of which one stays free and some are the driver's.
func (c *context) Describe(attr *verbs.DeviceAttr) {
	attr.Caps &^= verbs.CapMemWindow | verbs.CapOnDemandPaging
	attr.Caps |= verbs.CapSendWithImm | verbs.CapWriteWithImm | verbs.CapRead | verbs.CapAtomics | verbs.CapUC | verbs.CapUD | verbs.CapResizeCQ
	attr.MaxInline = maxInline
	c.largestCQ = roundUp(min(attr.MaxCQE+1, maxEntries)+1) / 2
	attr.MaxCQE = max(c.largestCQ-1-spare, 0)
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
