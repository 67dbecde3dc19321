package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

// rxe is the driver of Soft-RoCE devices (drivers/infiniband/sw/rxe of the
// kernel, rdma/rdma_user_rxe.h).
type rxe struct{}

func (rxe) open(mem memory, getContext func(extra) error) (driverContext, error) {
	if err := getContext(extra{}); err != nil {
		return nil, err
	}
	return &rxeContext{mem: mem}, nil
}

// rxeContext is an open rxe device.
type rxeContext struct {
	mem memory
}

func (*rxeContext) close() {}

func (*rxeContext) extra(command) extra { return extra{} }

// rxeMaxInline is RXE_MAX_INLINE_DATA of the kernel's driver: as much as 32
// SGEs take.
const rxeMaxInline = 32 * 16

func (*rxeContext) describe(attr *verbs.DeviceAttr) {
	attr.Caps |= verbs.CapWriteWithImm | verbs.CapSendWithImm | verbs.CapSendWithInv | verbs.CapRead | verbs.CapAtomics |
		verbs.CapUC | verbs.CapUD
	if attr.KernelCaps&(kernelCapFlushGlobal|kernelCapFlushPersis) != 0 {
		attr.Caps |= verbs.CapFlush
	}
	if attr.KernelCaps&kernelCapAtomicWrite != 0 {
		attr.Caps |= verbs.CapAtomicWrite
	}
	attr.MaxInline = rxeMaxInline
}
