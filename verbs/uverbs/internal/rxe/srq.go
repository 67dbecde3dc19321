package rxe

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// srq is a shared receive queue.
type srq struct {
	mem  driver.Memory
	recv requests
}

func (c *context) CreateSRQ(_ verbs.SRQAttr, create func(driver.Udata) (verbs.SRQAttr, error)) (driver.SRQ, error) {
	var out createSRQOut
	attr, err := create(driver.Udata{Out: abi.BytesOf(&out)})
	if err != nil {
		return nil, err
	}
	s := &srq{mem: c.mem}
	if s.recv, err = mapRequests(c.mem, out.queue, abi.SizeOf[recvWQE](), attr.MaxWR); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *srq) Capacity() int { return int(s.recv.most) }

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) { return postRecvs(&s.recv, wrs) }

// Modify tells the kernel, if it is to make another queue, where to write what
// to map.
func (s *srq) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask, modify func(in []byte) error) error {
	if mask&verbs.SRQAttrMaxWR == 0 {
		return modify(abi.BytesOf(new(modifySRQIn)))
	}
	answer, err := s.mem.Alloc(abi.SizeOf[mapping]())
	if err != nil {
		return err
	}
	defer s.mem.Free(answer)
	if err := modify(abi.BytesOf(&modifySRQIn{answer: abi.AddressOf(answer)})); err != nil {
		return err
	}
	recv, err := mapRequests(s.mem, *abi.ViewAt[mapping](answer, 0), abi.SizeOf[recvWQE](), attr.MaxWR)
	if err != nil {
		return err
	}
	s.mem.Unmap(s.recv.mem)
	s.recv = recv
	return nil
}

func (s *srq) Unmap() { s.mem.Unmap(s.recv.mem) }

// postRecvs puts receives into the queue of a QP or an SRQ.
func postRecvs(q *requests, wrs []verbs.RecvWR) (n int, err error) {
	room, err := q.room()
	for ; n < len(wrs) && err == nil; n++ {
		if n >= room {
			err = verbs.ErrQueueFull
			break
		}
		if err = putRecv(q.slot(n), &wrs[n]); err != nil {
			break
		}
	}
	if n > 0 {
		q.publish(n)
	}
	return n, err
}

func putRecv(slot []byte, wr *verbs.RecvWR) error {
	wqe, sges := abi.ViewAt[recvWQE](slot, 0), slot[abi.SizeOf[recvWQE]():]
	if most := len(sges) / abi.SizeOf[sge](); len(wr.SGL) > most {
		return fmt.Errorf("%w: %d SGEs, there is room for %d", verbs.ErrInvalid, len(wr.SGL), most)
	}
	length := uint64(0)
	for i := range wr.SGL {
		length += uint64(wr.SGL[i].Length)
	}
	if length > 1<<32-1 {
		return fmt.Errorf("%w: receive of %d bytes", verbs.ErrInvalid, length)
	}
	clear(slot[:abi.SizeOf[recvWQE]()])
	wqe.wrID, wqe.dma.length, wqe.dma.resid, wqe.dma.numSGE = wr.ID, uint32(length), uint32(length), uint32(len(wr.SGL))
	putSGEs(sges, wr.SGL)
	return nil
}

func putSGEs(mem []byte, sgl []verbs.SGE) {
	dst := abi.SliceAt[sge](mem, 0, len(sgl))
	for i := range sgl {
		dst[i] = sge{addr: sgl[i].Addr, length: sgl[i].Length, lkey: sgl[i].LKey}
	}
}
