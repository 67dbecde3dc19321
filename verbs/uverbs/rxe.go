package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

// rxe is the driver of Soft-RoCE devices (drivers/infiniband/sw/rxe of the
// kernel, rdma/rdma_user_rxe.h).
type rxe struct{}

// The bits of device_cap_flags, and from bit 32 on of device_cap_flags_ex,
// that say which optional operations there are (enum ib_device_cap_flags,
// rdma/ib_user_verbs.h).
const (
	kernelCapMemWindow   = 1 << 17
	kernelCapWindow2A    = 1 << 23
	kernelCapWindow2B    = 1 << 24
	kernelCapFlushGlobal = 1 << 38
	kernelCapFlushPersis = 1 << 39
	kernelCapAtomicWrite = 1 << 40
)

// rxeMaxInline is RXE_MAX_INLINE_DATA of the kernel's driver: as much as 32
// SGEs take.
const rxeMaxInline = 32 * 16

func (rxe) describe(attr *verbs.DeviceAttr) {
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

func (rxe) extra(cmd command) (in []byte, out int) {
	switch cmd {
	case cmdCreateCQ, cmdResizeCQ:
		return nil, sizeOf[rxeMapping]()
	case cmdCreateQP:
		return nil, sizeOf[rxeCreateQPOut]()
	case cmdCreateSRQ:
		return nil, sizeOf[rxeCreateSRQOut]()
	case cmdModifySRQ:
		return make([]byte, sizeOf[rxeModifySRQIn]()), sizeOf[rxeMapping]()
	case cmdCreateAH:
		return nil, sizeOf[rxeCreateAHOut]()
	}
	return nil, 0
}

func (rxe) openCQ(mem mapper, made madeCQ) (cqQueue, error) {
	q, err := openRxeCQ(mem, made.extra)
	if err != nil {
		return nil, err
	}
	return q, nil
}

func (rxe) openQP(mem mapper, made madeQP) (qpQueue, error) {
	q, err := openRxeQP(mem, made)
	if err != nil {
		return nil, err
	}
	return q, nil
}

func (rxe) openSRQ(mem mapper, made madeSRQ) (srqQueue, error) {
	q, err := openRxeSRQ(mem, made)
	if err != nil {
		return nil, err
	}
	return q, nil
}

func (rxe) ahNumber(extra []byte) uint32 {
	if len(extra) < sizeOf[rxeCreateAHOut]() {
		return 0
	}
	return viewAt[rxeCreateAHOut](extra, 0).ahNum
}
