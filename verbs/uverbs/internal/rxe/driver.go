// Package rxe drives Soft-RoCE devices: queues in memory that the kernel's driver
// reads when a doorbell is rung.
package rxe

import (
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// Driver is the driver of Soft-RoCE devices (drivers/infiniband/sw/rxe of the
// kernel, rdma/rdma_user_rxe.h).
type Driver struct{}

// Open has nothing of its own to tell the kernel, and maps nothing.
func (Driver) Open(mem driver.Memory, getContext func(driver.Udata) error) (driver.Context, error) {
	if err := getContext(driver.Udata{}); err != nil {
		return nil, err
	}
	return &context{mem: mem}, nil
}

// context is an open rxe device.
type context struct {
	mem driver.Memory
}

func (*context) Close() {}

// Errno: rxe refuses to deregister memory that windows are bound to as if the command
// made no sense.
func (*context) Errno(cmd abi.Command, errno syscall.Errno) syscall.Errno {
	if cmd == abi.CmdDeregMR && errno == syscall.EINVAL {
		return syscall.EBUSY
	}
	return errno
}

func (*context) Udata(abi.Command) driver.Udata { return driver.Udata{} }

// maxInline is RXE_MAX_INLINE_DATA of the kernel's driver: as much as 32
// SGEs take.
const maxInline = 32 * 16

func (*context) Describe(attr *verbs.DeviceAttr) {
	attr.Caps |= verbs.CapWriteWithImm | verbs.CapSendWithImm | verbs.CapSendWithInv | verbs.CapRead | verbs.CapAtomics |
		verbs.CapUC | verbs.CapUD | verbs.CapIOVA
	if attr.KernelCaps&(abi.KernelCapFlushGlobal|abi.KernelCapFlushPersis) != 0 {
		attr.Caps |= verbs.CapFlush
	}
	if attr.KernelCaps&abi.KernelCapAtomicWrite != 0 {
		attr.Caps |= verbs.CapAtomicWrite
	}
	attr.MaxInline = maxInline
}
