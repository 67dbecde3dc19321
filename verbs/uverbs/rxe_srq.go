package uverbs

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// rxeSRQ is a shared receive queue.
type rxeSRQ struct {
	mem  memory
	recv rxeRequests
}

func (c *rxeContext) createSRQ(create func(extra) (verbs.SRQAttr, error)) (srqQueue, error) {
	var out rxeCreateSRQOut
	attr, err := create(extra{out: bytesOf(&out)})
	if err != nil {
		return nil, err
	}
	s := &rxeSRQ{mem: c.mem}
	if s.recv, err = mapRxeRequests(c.mem, out.queue, sizeOf[rxeRecvWQE](), attr.MaxWR); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *rxeSRQ) capacity() int { return int(s.recv.most) }

func (s *rxeSRQ) postRecv(wrs []verbs.RecvWR) (int, error) { return postRxeRecvs(&s.recv, wrs) }

// modify tells the kernel, if it is to make another queue, where to write what
// to map.
func (s *rxeSRQ) modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask, modify func(in []byte) error) error {
	if mask&verbs.SRQAttrMaxWR == 0 {
		return modify(bytesOf(new(rxeModifySRQIn)))
	}
	answer, err := s.mem.alloc(sizeOf[rxeMapping]())
	if err != nil {
		return err
	}
	defer s.mem.unmap(answer)
	if err := modify(bytesOf(&rxeModifySRQIn{answer: addressOf(answer)})); err != nil {
		return err
	}
	recv, err := mapRxeRequests(s.mem, *viewAt[rxeMapping](answer, 0), sizeOf[rxeRecvWQE](), attr.MaxWR)
	if err != nil {
		return err
	}
	s.mem.unmap(s.recv.mem)
	s.recv = recv
	return nil
}

func (s *rxeSRQ) unmap() { s.mem.unmap(s.recv.mem) }

// postRxeRecvs puts receives into the queue of a QP or an SRQ.
func postRxeRecvs(q *rxeRequests, wrs []verbs.RecvWR) (n int, err error) {
	room, err := q.room()
	for ; n < len(wrs) && err == nil; n++ {
		if n >= room {
			err = verbs.ErrQueueFull
			break
		}
		if err = putRxeRecv(q.slot(n), &wrs[n]); err != nil {
			break
		}
	}
	if n > 0 {
		q.publish(n)
	}
	return n, err
}

func putRxeRecv(slot []byte, wr *verbs.RecvWR) error {
	wqe, sges := viewAt[rxeRecvWQE](slot, 0), slot[sizeOf[rxeRecvWQE]():]
	if most := len(sges) / sizeOf[rxeSGE](); len(wr.SGL) > most {
		return fmt.Errorf("%w: %d SGEs, there is room for %d", verbs.ErrInvalid, len(wr.SGL), most)
	}
	length := uint64(0)
	for i := range wr.SGL {
		length += uint64(wr.SGL[i].Length)
	}
	if length > 1<<32-1 {
		return fmt.Errorf("%w: receive of %d bytes", verbs.ErrInvalid, length)
	}
	clear(slot[:sizeOf[rxeRecvWQE]()])
	wqe.wrID, wqe.dma.length, wqe.dma.resid, wqe.dma.numSGE = wr.ID, uint32(length), uint32(length), uint32(len(wr.SGL))
	putRxeSGEs(sges, wr.SGL)
	return nil
}

func putRxeSGEs(mem []byte, sgl []verbs.SGE) {
	dst := sliceAt[rxeSGE](mem, 0, len(sgl))
	for i := range sgl {
		dst[i] = rxeSGE{addr: sgl[i].Addr, length: sgl[i].Length, lkey: sgl[i].LKey}
	}
}
