//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// srq is a shared receive queue: a list of receives in memory, each of which names
// the next one, and its doorbell record, how many were posted.
//
// Receives complete in any order. Those that are free are at the end of the list,
// behind what the device may read; one is always there, so that the last receive
// has a next.
type srq struct {
	ctx    *context
	shift  int
	record *uint32
	index  uint32 // by which completions name it, 0 if it is of no XRC domain
	number uint32 // the kernel's, of one of an XRC domain

	mu     sync.Mutex
	mem    []byte   // guarded by mu, nil once it is unmapped
	ids    []uint64 // guarded by mu
	taken  []bool   // guarded by mu: posted, and not completed
	next   uint16   // guarded by mu: the free one that is posted next
	last   uint16   // guarded by mu: the free one that was added last
	posted uint32   // guarded by mu: free running
}

// nextSegment is the size of struct mlx5_wqe_srq_next_seg, which has the index of
// the next receive in its third and fourth byte.
const nextSegment = 16

// CreateSRQ makes an SRQ for QPs.
func (c *context) CreateSRQ(attr verbs.SRQAttr, create func(driver.Udata) (verbs.SRQAttr, error)) (driver.SRQ, error) {
	s, err := c.newSRQ(attr, 0, func(u driver.Udata) error {
		_, err := create(u)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newSRQ gives the device memory in which all receives are one list.
func (c *context) newSRQ(attr verbs.SRQAttr, index uint32, create func(driver.Udata) error) (*srq, error) {
	if attr.MaxWR >= 1<<16 {
		return nil, fmt.Errorf("%w: SRQ of %d receives", verbs.ErrInvalid, attr.MaxWR)
	}
	n := roundUp(attr.MaxWR + 1)
	shift := bits.Len(uint(roundUp(max(nextSegment+max(attr.MaxSGE, 1)*segmentSize, 2*segmentSize)))) - 1
	mem, err := c.mem.Alloc(n<<shift + recordSize)
	if err != nil {
		return nil, err
	}
	s := &srq{ctx: c, mem: mem, shift: shift, record: abi.ViewAt[uint32](mem, n<<shift), ids: make([]uint64, n), taken: make([]bool, n)}
	for i := range n {
		s.link(uint16(i), uint16((i+1)&(n-1)))
	}
	s.last = uint16(n - 1)
	in := createSRQIn{buffer: abi.AddressOf(mem), record: abi.AddressOf(mem[n<<shift:]), index: index}
	var out createSRQOut
	if err := create(driver.Udata{In: abi.BytesOf(&in), Out: abi.BytesOf(&out)}); err != nil {
		c.mem.Free(mem)
		return nil, err
	}
	return s, nil
}

func (s *srq) slot(i uint16) []byte { return s.mem[int(i)<<s.shift:][:1<<s.shift] }

func (s *srq) link(i, next uint16) { be.PutUint32(s.slot(i), uint32(next)) }

// Capacity leaves out the one that is always free.
func (s *srq) Capacity() int { return len(s.ids) - 1 }

// PostRecv takes receives from the free end of the list.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; n < len(wrs); n++ {
		if s.next == s.last {
			err = verbs.ErrQueueFull
			break
		}
		slot := s.slot(s.next)
		if err = putRecv(slot[nextSegment:], &wrs[n]); err != nil {
			break
		}
		s.ids[s.next], s.taken[s.next] = wrs[n].ID, true
		s.advance(slot)
	}
	if n > 0 {
		s.ring()
	}
	return n, err
}

// pageFault is the vendor's syndrome of a receive into memory on demand that was not there
// (MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT of rdma-core). The status is that of a peer's abort then.
const pageFault = 0x93

// completed frees the receive of a completion. Where a page was missing, the device has taken the
// receive and not the message, which the peer sends again: the receive is posted again.
func (s *srq) completed(wc *verbs.WC, index uint16) (wanted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(index) >= len(s.ids) || !s.taken[index] {
		return false, fmt.Errorf("%w: receive %d is not posted", errQueue, index)
	}
	wc.ID, s.taken[index] = s.ids[index], false
	again := wc.Status == verbs.WCRemAbortErr && wc.VendorErr == pageFault
	if s.mem != nil {
		s.link(s.last, index)
		s.last = index
		if again {
			s.repost(index)
		}
	}
	return !again, nil
}

// repost posts a receive that was freed once more, in the place of the first free one: the kernel
// looks where the receive was for the pages that are missing. The caller holds mu.
func (s *srq) repost(index uint16) {
	slot := s.slot(s.next)
	copy(slot[nextSegment:], s.slot(index)[nextSegment:])
	s.ids[s.next], s.taken[s.next] = s.ids[index], true
	s.advance(slot)
	s.ring()
}

// advance counts what was written to the first free slot as posted.
func (s *srq) advance(slot []byte) {
	s.next = be.Uint16(slot[2:]) & uint16(len(s.ids)-1)
	s.posted++
}

func (s *srq) ring() { storeRecord(s.record, bits.ReverseBytes32(s.posted&0xffff)) }

// Modify changes the limit; the size is fixed.
func (s *srq) Modify(_ verbs.SRQAttr, mask verbs.SRQAttrMask, modify func(in []byte) error) error {
	if mask&verbs.SRQAttrMaxWR != 0 {
		return fmt.Errorf("%w: the size of an SRQ of a ConnectX is fixed", verbs.ErrUnsupported)
	}
	return modify(nil)
}

// Unmap frees the memory, which the device has let go of. A CQ may be polled at the
// same time, and find completions afterwards.
func (s *srq) Unmap() {
	s.ctx.xrc.remove(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx.mem.Free(s.mem)
	s.mem = nil
}
