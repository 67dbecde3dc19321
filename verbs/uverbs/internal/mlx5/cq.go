//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

var (
	be = binary.BigEndian

	errQueue = errors.New("uverbs: what a ConnectX has written cannot be a completion")
)

// cq is a completion queue: a power of two of CQEs, and behind them its doorbell
// record.
//
//	word            written by
//	a CQE           the device, the word with the owner's bit last
//	record, first   us: how many CQEs were taken
//	record, second  us: how the CQ is armed
//
// A CQE is ours if its owner's bit is that of the round.
type cq struct {
	ctx      *context
	mem      []byte
	number   uint32
	mask     uint32
	next     uint32 // free running: CQEs taken
	record   *[2]uint32
	register *uint64
	events   atomic.Uint32 // that were read from the channel
	// armed is the number of the event after which the CQ was armed for any
	// completion; valid if armedAny. That event has not come.
	armed    uint32
	armedAny bool
	capacity int
	lent     atomic.Int32 // spare entries that QPs have
}

// spare is how many entries a CQ has beside those that were asked for. A QP
// takes one, see sendQueue. Where all are taken, requests of a further QP are not
// marked: its program has to ask for a completion before its queue is full, as with
// other libraries.
const spare = 64

// The places of doorbell records are cache lines of their own, at the end of the
// memory of a queue.
const recordSize = 64

// CreateCQ gives the device memory in which all CQEs are invalid.
func (c *context) CreateCQ(cqe int, create func(int, driver.Extra) error) (driver.CQ, error) {
	if most := maxEntries - 1 - spare; cqe > most {
		return nil, fmt.Errorf("%w: CQ of %d entries, %d is the most", verbs.ErrInvalid, cqe, most)
	}
	entries := roundUp(cqe + spare + 1)
	mem, err := c.mem.Alloc(entries*cqeSize + recordSize)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		mem[i*cqeSize+cqeSize-1] = cqeInvalid << 4
	}
	q := &cq{ctx: c, mem: mem, capacity: entries - 1 - spare, mask: uint32(entries - 1), record: abi.ViewAt[[2]uint32](mem, entries*cqeSize)}
	q.register = abi.ViewAt[uint64](c.uars[0], cqRegister)
	in := createCQIn{buffer: abi.AddressOf(mem), record: abi.AddressOf(mem[entries*cqeSize:]), cqeSize: cqeSize}
	var out createCQOut
	if err := create(entries-1, driver.Extra{In: abi.BytesOf(&in), Out: abi.BytesOf(&out)}); err != nil {
		c.mem.Unmap(mem)
		return nil, err
	}
	q.number = out.cqn
	return q, nil
}

// Poll takes at most one round of the queue, of which it leaves out what no QP
// that is there has asked for.
func (c *cq) Poll(wcs []verbs.WC, qps driver.QPs) (int, error) {
	first, n := c.next, 0
	var err error
	for n < len(wcs) && c.next-first <= c.mask {
		cqe := c.mem[int(c.next&c.mask)*cqeSize:][:cqeSize:cqeSize]
		// The load of the last word is before those of the others.
		last := bits.ReverseBytes32(abi.WordAt(cqe, cqeLast).Load())
		if last>>4&0xf == cqeInvalid || last&1 != c.next/(c.mask+1)&1 {
			break
		}
		var wanted bool
		if wanted, err = read(&wcs[n], cqe, last, qps); err != nil {
			break
		}
		c.next++
		if wanted {
			n++
		} else {
			// Its QP may mark the next request already, for which the device
			// needs the entry. There is always one more than all can use.
			c.recordTaken()
		}
	}
	if c.next != first {
		c.recordTaken()
	}
	if n > 0 {
		err = nil // it is there with the next call
	}
	return n, err
}

func (c *cq) recordTaken() { storeRecord(&c.record[0], bits.ReverseBytes32(c.next&0xffffff)) }

// read translates a CQE, and reports false if its QP is gone.
func read(wc *verbs.WC, cqe []byte, last uint32, qps driver.QPs) (wanted bool, err error) {
	word := be.Uint32(cqe[cqeOpQPN:])
	*wc = verbs.WC{QPN: word & 0xffffff}
	q, ok := qps.Find(wc.QPN).(*qp)
	if !ok {
		return false, nil
	}
	index := uint16(last >> 16)
	switch last >> 4 & 0xf {
	case cqeRequest:
		wc.Opcode, wc.ByteLen = requestOpcode(byte(word>>24)), be.Uint32(cqe[cqeBytes:])
		return q.send.completed(wc, index)
	case cqeWriteImm:
		wc.Opcode, wc.Flags = verbs.WCRecvWriteWithImm, verbs.WCWithImm
	case cqeRecv:
		wc.Opcode = verbs.WCRecv
	case cqeRecvImm:
		wc.Opcode, wc.Flags = verbs.WCRecv, verbs.WCWithImm
	case cqeRecvInv:
		wc.Opcode, wc.Flags = verbs.WCRecv, verbs.WCWithInv
	case cqeRequestError:
		wc.Status, wc.VendorErr = status(cqe[cqeSyndrome]), uint32(cqe[cqeVendor])
		return q.send.completed(wc, index)
	case cqeResponseError:
		wc.Status, wc.VendorErr = status(cqe[cqeSyndrome]), uint32(cqe[cqeVendor])
		return q.received(wc, index)
	default:
		return false, fmt.Errorf("%w: %#x", errQueue, last)
	}
	wc.ByteLen = be.Uint32(cqe[cqeBytes:])
	if wc.Flags != 0 {
		wc.Imm = be.Uint32(cqe[cqeImm:])
	}
	if q.datagrams {
		source := be.Uint32(cqe[cqeFlagsRQPN:])
		wc.SrcQPN = source & 0xffffff
		if source>>28&3 != 0 {
			wc.Flags |= verbs.WCGRH
		}
	}
	return q.received(wc, index)
}

// requestOpcode is what a WQE completes as.
func requestOpcode(op byte) verbs.WCOpcode {
	switch op {
	case opWrite, opWriteImm:
		return verbs.WCWrite
	case opRead:
		return verbs.WCRead
	case opCompare:
		return verbs.WCCompareSwap
	case opFetchAdd:
		return verbs.WCFetchAdd
	}
	return verbs.WCSend
}

// status translates a syndrome (MLX5_CQE_SYNDROME_*).
func status(syndrome byte) verbs.WCStatus {
	switch syndrome {
	case 0x01:
		return verbs.WCLocLenErr
	case 0x02:
		return verbs.WCLocQPOpErr
	case 0x04:
		return verbs.WCLocProtErr
	case 0x05:
		return verbs.WCWRFlushErr
	case 0x06:
		return verbs.WCMWBindErr
	case 0x10:
		return verbs.WCBadRespErr
	case 0x11:
		return verbs.WCLocAccessErr
	case 0x12:
		return verbs.WCRemInvReqErr
	case 0x13:
		return verbs.WCRemAccessErr
	case 0x14:
		return verbs.WCRemOpErr
	case 0x15:
		return verbs.WCRetryExcErr
	case 0x16:
		return verbs.WCRNRRetryExcErr
	case 0x22:
		return verbs.WCRemAbortErr
	}
	return verbs.WCGeneralErr
}

// Arm writes how to the record, and then rings. The command has a number that goes
// up with each event, by which the device knows an arm that it has answered.
func (c *cq) Arm(solicited bool) bool {
	events := c.events.Load()
	command := events&3<<28 | c.next&0xffffff
	if solicited {
		if c.armedAny && c.armed == events {
			return true // a solicited one is one of any
		}
		command |= 1 << 24
	}
	c.armed, c.armedAny = events, !solicited
	storeRecord(&c.record[1], bits.ReverseBytes32(command))
	storeDoorbell(c.register, bits.ReverseBytes64(uint64(command)<<32|uint64(c.number)))
	return true
}

// Capacity is what is not spare.
func (c *cq) Capacity() int { return c.capacity }

// borrow takes one of the spare entries for a QP.
func (c *cq) borrow() bool {
	if c.lent.Add(1) <= spare {
		return true
	}
	c.lent.Add(-1)
	return false
}

// giveBack is for a QP that is gone.
func (c *cq) giveBack() { c.lent.Add(-1) }

// Notified counts an event.
func (c *cq) Notified() { c.events.Add(1) }

// Resize is not called: the driver says that it cannot.
func (c *cq) Resize(int, func(driver.Extra) error) error {
	return fmt.Errorf("%w: resizing a CQ of a ConnectX", verbs.ErrUnsupported)
}

// Unmap frees the memory, which the device has let go of.
func (c *cq) Unmap() { c.ctx.mem.Unmap(c.mem) }
