//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
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
	entries  []entry // in mem
	first    []byte  // that of CreateCQ, which the record stays in
	number   uint32
	mask     uint32
	next     uint32 // free running: CQEs taken
	record   *[2]uint32
	doorbell *uint64       // MLX5_CQ_DOORBELL of the first UAR
	events   atomic.Uint32 // that were read from the channel
	// armed is the number of the event after which the CQ was armed for any
	// completion; valid if armedAny. That event has not come.
	armed    uint32
	armedAny bool
	capacity int

	lending  sync.Mutex
	reserved int // guarded by lending: entries that QPs may have
	lent     int // guarded by lending: those that they have
}

// minReserved is how many entries a CQ has at least beside those that were asked for. A QP
// takes one, see sendQueue. Where all are taken, requests of a further QP are not
// marked: its program has to ask for a completion before its queue is full, as with
// other libraries. A large CQ is for many QPs, and has a quarter more.
const minReserved = 64

// entries is the size of a queue for so many completions, and so many reserved entries at least.
// The device may not have the quarter.
func (c *context) entries(cqe, lent int) int {
	return max(roundUp(cqe+max(minReserved, lent)+1), min(roundUp(cqe+cqe/4+1), c.largestCQ))
}

// The places of doorbell records are cache lines of their own, at the end of the
// memory of a queue.
const recordSize = 64

// CreateCQ gives the device memory in which all CQEs are invalid.
func (c *context) CreateCQ(cqe int, create func(int, driver.Udata) error) (driver.CQ, error) {
	if most := maxEntries - 1 - minReserved; cqe > most {
		return nil, fmt.Errorf("%w: CQ of %d entries, %d is the most", verbs.ErrInvalid, cqe, most)
	}
	entries := c.entries(cqe, 0)
	mem, err := c.emptyCQ(entries)
	if err != nil {
		return nil, err
	}
	q := &cq{ctx: c, mem: mem, entries: abi.SliceAt[entry](mem, 0, entries), first: mem, capacity: cqe, reserved: entries - 1 - cqe, mask: uint32(entries - 1),
		record: abi.ViewAt[[2]uint32](mem, entries*cqeSize)}
	in := createCQIn{buffer: abi.AddressOf(mem), record: abi.AddressOf(mem[entries*cqeSize:]), cqeSize: cqeSize}
	var out createCQOut
	if err := create(entries-1, driver.Udata{In: abi.BytesOf(&in), Out: abi.BytesOf(&out)}); err != nil {
		c.mem.Free(mem)
		return nil, err
	}
	q.number = out.cqn
	q.doorbell = abi.ViewAt[uint64](c.uars[0], cqDoorbell) // Close, which unmaps it, waits for what was created
	return q, nil
}

// emptyCQ returns memory for CQEs, all invalid, and a record.
func (c *context) emptyCQ(entries int) ([]byte, error) {
	mem, err := c.mem.Alloc(entries*cqeSize + recordSize)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		mem[i*cqeSize+cqeSize-1] = cqeInvalid << 4
	}
	return mem, nil
}

// entry is the memory of a CQE.
type entry [cqeSize]byte

// at returns CQE i and its last word, or false if the device has not written it. The load of the
// last word is before those of the others.
func (c *cq) at(i uint32) (e *entry, last uint32, ok bool) {
	e = &c.entries[i&c.mask]
	last = bits.ReverseBytes32(abi.WordAt(e[:], cqeLast).Load())
	return e, last, last>>4&0xf != cqeInvalid && last&1 == owner(i, c.mask)
}

// owner is the owner's bit of CQE i: that of the round.
func owner(i, mask uint32) uint32 {
	if i&(mask+1) != 0 {
		return 1
	}
	return 0
}

// Poll takes at most one round of the queue, of which it leaves out what no QP
// that is there has asked for.
func (c *cq) Poll(wcs []verbs.WC, qps driver.QPs) (int, error) {
	if _, _, ok := c.at(c.next); !ok {
		return 0, nil
	}
	return c.take(wcs, qps)
}

func (c *cq) take(wcs []verbs.WC, qps driver.QPs) (n int, err error) {
	first := c.next
	var q *qp // the one of the last CQE
	for n < len(wcs) && c.next-first <= c.mask {
		e, last, ok := c.at(c.next)
		if !ok {
			break
		}
		num := be.Uint32(e[cqeOpQPN:]) & 0xffffff
		if q == nil || q.number != num {
			q, _ = qps.Find(num).(*qp)
		}
		wanted := false
		if s, is := c.ctx.xrc.of(e, last); is {
			if wanted, err = s.read(&wcs[n], e, num, last); err != nil {
				break
			}
		} else if q != nil {
			if wanted, err = q.read(&wcs[n], e, last); err != nil {
				break
			}
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

// read translates a CQE, and reports whether the program is to see it.
func (q *qp) read(wc *verbs.WC, cqe *entry, last uint32) (wanted bool, err error) {
	*wc = verbs.WC{QPN: q.number}
	index := uint16(last >> 16)
	switch last >> 4 & 0xf {
	case cqeRequest:
		wc.ByteLen = be.Uint32(cqe[cqeBytes:])
		wc.Timestamp = be.Uint64(cqe[cqeTimestamp:])
		return q.send.completed(wc, index)
	case cqeRequestError:
		wc.Status, wc.VendorErr = status(cqe[cqeSyndrome]), uint32(cqe[cqeVendor])
		return q.send.completed(wc, index)
	}
	if err := wcOfReceive(wc, cqe, last); err != nil {
		return false, err
	}
	if q.typ == verbs.QPTypeUD && wc.Status == verbs.WCSuccess {
		source := be.Uint32(cqe[cqeFlagsRQPN:])
		wc.SrcQPN = source & 0xffffff
		if !q.ctx.ethernet { // where the service level has the version of RoCE in its place
			wc.SL, wc.SLID, wc.PathBits = byte(source>>24&0xf), be.Uint16(cqe[cqeSLID:]), cqe[cqePathBits]&0x7f
		}
		if source>>28&3 != 0 {
			wc.Flags |= verbs.WCGRH
		}
	}
	return q.received(wc, index)
}

// wcOfReceive translates what all CQEs of receives have.
func wcOfReceive(wc *verbs.WC, cqe *entry, last uint32) error {
	switch last >> 4 & 0xf {
	case cqeWriteImm:
		wc.Opcode, wc.Flags = verbs.WCRecvWriteWithImm, verbs.WCWithImm
	case cqeRecv:
		wc.Opcode = verbs.WCRecv
	case cqeRecvImm:
		wc.Opcode, wc.Flags = verbs.WCRecv, verbs.WCWithImm
	case cqeRecvInv:
		wc.Opcode, wc.Flags = verbs.WCRecv, verbs.WCWithInv
	case cqeResponseError:
		wc.Opcode = verbs.WCRecv
		wc.Status, wc.VendorErr = status(cqe[cqeSyndrome]), uint32(cqe[cqeVendor])
		return nil
	default:
		return fmt.Errorf("%w: %#x", errQueue, last)
	}
	wc.ByteLen, wc.Timestamp = be.Uint32(cqe[cqeBytes:]), be.Uint64(cqe[cqeTimestamp:])
	if wc.Flags != 0 {
		wc.Imm = be.Uint32(cqe[cqeImm:])
	}
	return nil
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
	c.ctx.ring(&c.record[1], bits.ReverseBytes32(command), c.doorbell, bits.ReverseBytes64(uint64(command)<<32|uint64(c.number)))
	return true
}

// Capacity is what is not reserved.
func (c *cq) Capacity() int { return c.capacity }

// borrow takes one of the reserved entries for a QP.
func (c *cq) borrow() bool {
	c.lending.Lock()
	defer c.lending.Unlock()
	if c.lent == c.reserved {
		return false
	}
	c.lent++
	return true
}

// giveBack is for a QP that is gone.
func (c *cq) giveBack() {
	c.lending.Lock()
	defer c.lending.Unlock()
	c.lent--
}

// Notified counts an event.
func (c *cq) Notified() { c.events.Add(1) }

// Resize gives the device memory of another size. It writes a CQE that says so behind those in the
// old memory, and the CQE that follows to the new one. The record stays where it is.
func (c *cq) Resize(cqe int, resize func(int, driver.Udata) error) error {
	c.lending.Lock() // no QP borrows while the reserved entries are counted anew
	defer c.lending.Unlock()
	if most := maxEntries - 1 - max(minReserved, c.lent); cqe > most {
		return fmt.Errorf("%w: CQ of %d entries, %d is the most", verbs.ErrInvalid, cqe, most)
	}
	if waiting := c.waiting(); waiting > cqe {
		return fmt.Errorf("%w: %d completions wait, more than %d", verbs.ErrInvalid, waiting, cqe)
	}
	entries := c.ctx.entries(cqe, c.lent)
	if uint32(entries-1) == c.mask { // for the kernel that is no change
		c.capacity, c.reserved = cqe, entries-1-cqe
		return nil
	}
	mem, err := c.ctx.emptyCQ(entries)
	if err != nil {
		return err
	}
	in := resizeCQIn{buffer: abi.AddressOf(mem), cqeSize: cqeSize}
	if err := resize(entries-1, driver.Udata{In: abi.BytesOf(&in)}); err != nil {
		c.ctx.mem.Free(mem)
		return err
	}
	err = c.moveTo(mem, uint32(entries-1))
	c.unmapLatest()
	c.mem, c.entries, c.mask = mem, abi.SliceAt[entry](mem, 0, entries), uint32(entries-1)
	c.capacity, c.reserved = cqe, entries-1-cqe
	c.recordTaken() // the CQE of the resize is
	return err
}

// waiting counts the completions in the queue.
func (c *cq) waiting() int {
	n := uint32(0)
	for n <= c.mask {
		if _, _, ok := c.at(c.next + n); !ok {
			break
		}
		n++
	}
	return int(n)
}

// moveTo copies the CQEs that wait to the new memory, each one place on: the CQE of the resize,
// which is the last in the old memory, counts as the first that is taken.
func (c *cq) moveTo(mem []byte, mask uint32) error {
	for i := c.next; i-c.next <= c.mask && i-c.next < mask; i++ {
		cqe, last, ok := c.at(i)
		if !ok {
			return fmt.Errorf("%w: the queue ends before it was resized", errQueue)
		}
		if last>>4&0xf == cqeResize {
			c.next++
			return nil
		}
		moved := mem[int((i+1)&mask)*cqeSize:][:cqeSize]
		copy(moved, cqe[:])
		moved[cqeSize-1] = byte(last)&^1 | byte(owner(i+1, mask))
	}
	return fmt.Errorf("%w: more than there was room for, and the queue was not resized", errQueue)
}

func (c *cq) unmapLatest() {
	if &c.mem[0] != &c.first[0] {
		c.ctx.mem.Free(c.mem)
	}
}

// Unmap frees the memory, which the device has let go of.
func (c *cq) Unmap() {
	c.unmapLatest()
	c.ctx.mem.Free(c.first)
}
