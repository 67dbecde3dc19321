package rxe

import (
	"math/bits"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// cq is a completion queue of rxe: a ring of struct ib_uverbs_wc, of which
// the kernel is the producer.
type cq struct {
	mem  driver.Memory
	ring ring
	next uint32 // our index: the next to read
}

func (c *context) CreateCQ(cqe int, create func(int, driver.Udata) error) (driver.CQ, error) {
	q := &cq{mem: c.mem}
	if err := q.open(func(u driver.Udata) error { return create(cqe, u) }); err != nil {
		return nil, err
	}
	return q, nil
}

// open maps the queue that a command makes.
func (c *cq) open(command func(driver.Udata) error) error {
	var m mapping
	if err := command(driver.Udata{Out: abi.BytesOf(&m)}); err != nil {
		return err
	}
	b, err := c.mem.Map(m.offset, int(m.size), driver.MayRead|driver.MayWrite)
	if err != nil {
		return err
	}
	ring, err := openRing(b, abi.SizeOf[abi.WC]())
	var next uint32
	if err == nil {
		next, err = ring.index(ring.consumer)
	}
	if err != nil {
		c.mem.Unmap(b)
		return err
	}
	c.ring, c.next = ring, next
	return nil
}

func (c *cq) Poll(wcs []verbs.WC, _ driver.QPs) (int, error) {
	tail, err := c.ring.index(c.ring.producer)
	if err != nil {
		return 0, err
	}
	n := 0
	for ; n < len(wcs) && c.next != tail; n++ {
		readWC(&wcs[n], c.ring.element(c.next))
		c.next = (c.next + 1) & c.ring.mask
	}
	if n > 0 {
		c.ring.consumer.Store(c.next)
	}
	return n, nil
}

// The flags of a completion as rxe writes them (enum ib_wc_flags of the
// kernel's rdma/ib_verbs.h, whose WITH_INVALIDATE is another bit than that of
// libibverbs).
const (
	wcGRH          = 1 << 0
	wcWithImm      = 1 << 1
	wcWithInv      = 1 << 2
	wcWithInvIBV   = 1 << 3
	wcInvalidation = wcWithInv | wcWithInvIBV
)

// readWC translates a completion. Each field is read once.
func readWC(wc *verbs.WC, element []byte) {
	src := *abi.ViewAt[abi.WC](element, 0)
	*wc = verbs.WC{ID: src.WRID, QPN: src.QPNum, VendorErr: src.VendorErr, Status: verbs.WCGeneralErr}
	if src.Status != uint32(verbs.WCSuccess) {
		if src.Status <= uint32(verbs.WCTMRndvIncomplete) {
			wc.Status = verbs.WCStatus(src.Status)
		}
		return
	}
	switch op := verbs.WCOpcode(src.Opcode); {
	case src.Opcode > 0xff:
		return
	case op == verbs.WCRecv, op == verbs.WCRecvWriteWithImm:
		wc.Status, wc.Opcode, wc.ByteLen, wc.SrcQPN = verbs.WCSuccess, op, src.ByteLen, src.SrcQP
		wc.SLID, wc.SL, wc.PathBits = src.SLID, src.SL, src.PathBits
		if src.WCFlags&wcGRH != 0 {
			wc.Flags |= verbs.WCGRH
		}
		if src.WCFlags&wcWithImm != 0 {
			wc.Flags |= verbs.WCWithImm
			wc.Imm = networkOrder(src.Ex)
		} else if src.WCFlags&wcInvalidation != 0 {
			wc.Flags |= verbs.WCWithInv
			wc.Imm = src.Ex
		}
	case op <= verbs.WCLocalInv, op == verbs.WCFlush, op == verbs.WCAtomicWrite:
		wc.Status, wc.Opcode, wc.ByteLen = verbs.WCSuccess, op, src.ByteLen
	}
}

// Arm takes a command: the kernel reads nothing but its own memory there.
func (c *cq) Arm(bool) bool { return false }

// Resize has nothing to move: the kernel has moved what was in the queue.
func (c *cq) Resize(cqe int, resize func(int, driver.Udata) error) error {
	old := c.ring.mem
	if err := c.open(func(u driver.Udata) error { return resize(cqe, u) }); err != nil {
		return err
	}
	c.mem.Unmap(old)
	return nil
}

func (c *cq) Unmap() { c.mem.Unmap(c.ring.mem) }

// networkOrder translates between our byte order and that of the network.
func networkOrder(v uint32) uint32 {
	if abi.LittleEndian {
		return bits.ReverseBytes32(v)
	}
	return v
}
