// Package siw drives Soft-iWARP devices: queues whose elements say themselves
// whose they are.
package siw

import (
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// Driver is the driver of Soft-iWARP devices (drivers/infiniband/sw/siw of the
// kernel, rdma/siw-abi.h). It has reliable connections, SEND, WRITE, READ and
// SEND_WITH_INV; no immediates, no atomics, no windows.
//
// What the kernel's driver (6.1 to 6.12) does not do, and nobody can do here:
// it does not ask for the right of remote READ, so that a connected peer who
// guesses a key may read all memory that is registered in the QP's protection
// domain; and the completion of a receive does not say which key the message
// invalidated.
type Driver struct{}

// Open maps nothing. What the kernel answers is not needed.
func (Driver) Open(mem driver.Memory, getContext func(driver.Udata) error) (driver.Context, error) {
	if err := getContext(driver.Udata{Out: abi.BytesOf(new(contextOut))}); err != nil {
		return nil, err
	}
	return &context{mem: mem}, nil
}

// context is an open siw device.
type context struct {
	mem driver.Memory
}

func (*context) Close() {}

func (*context) Describe(attr *verbs.DeviceAttr) {
	attr.Caps |= verbs.CapSendWithInv | verbs.CapRead
	attr.MaxInline = maxInline
	attr.MaxSGERead = 1 // RFC 5040, section 4.4: a READ has one sink
}

// stagKey counts up, so that a key of memory that is gone does not fit the
// memory that has its number next.
var stagKey atomic.Uint32

func (*context) Udata(cmd abi.Command) driver.Udata {
	if cmd != abi.CmdRegMR {
		return driver.Udata{}
	}
	return driver.Udata{In: abi.BytesOf(&regMRIn{stagKey: uint8(stagKey.Add(1))}), Out: abi.BytesOf(new(regMROut))}
}

// CreateAH is not called: an iWARP device has no datagrams.
func (*context) CreateAH(*verbs.AddressVector, func(driver.Udata) error) (any, error) {
	return nil, fmt.Errorf("%w: address handle on siw", verbs.ErrUnsupported)
}
