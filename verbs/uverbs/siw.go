package uverbs

import (
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// siw is the driver of Soft-iWARP devices (drivers/infiniband/sw/siw of the
// kernel, rdma/siw-abi.h). It has reliable connections, SEND, WRITE, READ and
// SEND_WITH_INV; no immediates, no atomics, no windows.
//
// What the kernel's driver (6.1 to 6.12) does not do, and nobody can do here:
// it does not ask for the right of remote READ, so that a connected peer who
// guesses a key may read all memory that is registered in the QP's protection
// domain; and the completion of a receive does not say which key the message
// invalidated.
type siw struct{}

func (siw) open(mem memory, getContext func(extra) error) (driverContext, error) {
	if err := getContext(extra{out: bytesOf(new(siwContextOut))}); err != nil {
		return nil, err
	}
	return &siwContext{mem: mem}, nil
}

// siwContext is an open siw device.
type siwContext struct {
	mem memory
}

func (*siwContext) close() {}

func (*siwContext) describe(attr *verbs.DeviceAttr) {
	attr.Caps |= verbs.CapSendWithInv | verbs.CapRead
	attr.MaxInline = siwMaxInline
	attr.MaxSGERead = 1 // RFC 5040, section 4.4: a READ has one sink
}

// siwStagKey counts up, so that a key of memory that is gone does not fit the
// memory that has its number next.
var siwStagKey atomic.Uint32

func (*siwContext) extra(cmd command) extra {
	if cmd != cmdRegMR {
		return extra{}
	}
	return extra{in: bytesOf(&siwRegMRIn{stagKey: uint8(siwStagKey.Add(1))}), out: bytesOf(new(siwRegMROut))}
}

// createAH is not called: an iWARP device has no datagrams.
func (*siwContext) createAH(*verbs.AddressVector, func(extra) error) (any, error) {
	return nil, fmt.Errorf("%w: address handle on siw", verbs.ErrUnsupported)
}
