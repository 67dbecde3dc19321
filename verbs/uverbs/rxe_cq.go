package uverbs

import (
	"math/bits"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// rxeCQ is a completion queue of rxe: a ring of struct ib_uverbs_wc, of which
// the kernel is the producer.
type rxeCQ struct {
	mem  memory
	ring rxeRing
	next uint32 // our index: the next to read
}

func (c *rxeContext) createCQ(create func(extra) error) (cqQueue, error) {
	q := &rxeCQ{mem: c.mem}
	if err := q.open(create); err != nil {
		return nil, err
	}
	return q, nil
}

// open maps the queue that a command makes.
func (c *rxeCQ) open(command func(extra) error) error {
	var m rxeMapping
	if err := command(extra{out: bytesOf(&m)}); err != nil {
		return err
	}
	b, err := c.mem.mmap(m.offset, int(m.size), mayRead|mayWrite)
	if err != nil {
		return err
	}
	ring, err := openRxeRing(b, sizeOf[uverbsWC]())
	var next uint32
	if err == nil {
		next, err = ring.index(ring.consumer)
	}
	if err != nil {
		c.mem.unmap(b)
		return err
	}
	c.ring, c.next = ring, next
	return nil
}

func (c *rxeCQ) poll(wcs []verbs.WC, _ qpTable) (int, error) {
	tail, err := c.ring.index(c.ring.producer)
	if err != nil {
		return 0, err
	}
	n := 0
	for ; n < len(wcs) && c.next != tail; n++ {
		readRxeWC(&wcs[n], c.ring.element(c.next))
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
	rxeWCGRH          = 1 << 0
	rxeWCWithImm      = 1 << 1
	rxeWCWithInv      = 1 << 2
	rxeWCWithInvIBV   = 1 << 3
	rxeWCInvalidation = rxeWCWithInv | rxeWCWithInvIBV
)

// readRxeWC translates a completion. Each field is read once.
func readRxeWC(wc *verbs.WC, element []byte) {
	src := *viewAt[uverbsWC](element, 0)
	*wc = verbs.WC{ID: src.wrID, QPN: src.qpNum, VendorErr: src.vendorErr, Status: verbs.WCGeneralErr}
	if src.status != uint32(verbs.WCSuccess) {
		if src.status <= uint32(verbs.WCTMRndvIncomplete) {
			wc.Status = verbs.WCStatus(src.status)
		}
		return
	}
	switch op := verbs.WCOpcode(src.opcode); {
	case src.opcode > 0xff:
		return
	case op == verbs.WCRecv, op == verbs.WCRecvWriteWithImm:
		wc.Status, wc.Opcode, wc.ByteLen, wc.SrcQPN = verbs.WCSuccess, op, src.byteLen, src.srcQP
		if src.wcFlags&rxeWCGRH != 0 {
			wc.Flags |= verbs.WCGRH
		}
		if src.wcFlags&rxeWCWithImm != 0 {
			wc.Flags |= verbs.WCWithImm
			wc.Imm = networkOrder(src.ex)
		} else if src.wcFlags&rxeWCInvalidation != 0 {
			wc.Flags |= verbs.WCWithInv
			wc.Imm = src.ex
		}
	case op <= verbs.WCLocalInv, op == verbs.WCFlush, op == verbs.WCAtomicWrite:
		wc.Status, wc.Opcode, wc.ByteLen = verbs.WCSuccess, op, src.byteLen
	}
}

// arm takes a command: the kernel reads nothing but its own memory there.
func (c *rxeCQ) arm(bool) bool { return false }

// resize has nothing to move: the kernel has moved what was in the queue.
func (c *rxeCQ) resize(_ int, resize func(extra) error) error {
	old := c.ring.mem
	if err := c.open(resize); err != nil {
		return err
	}
	c.mem.unmap(old)
	return nil
}

func (c *rxeCQ) unmap() { c.mem.unmap(c.ring.mem) }

// networkOrder translates between our byte order and that of the network.
func networkOrder(v uint32) uint32 {
	if littleEndian {
		return bits.ReverseBytes32(v)
	}
	return v
}
