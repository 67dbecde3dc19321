package uverbs

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// siwSRQ is a shared receive queue.
type siwSRQ struct {
	mem  memory
	recv siwRing
}

func (c *siwContext) createSRQ(create func(extra) (verbs.SRQAttr, error)) (srqQueue, error) {
	var out siwCreateSRQOut
	if _, err := create(extra{out: bytesOf(&out)}); err != nil {
		return nil, err
	}
	r, err := mapSiwRing(c.mem, out.srqKey, out.numRQE, sizeOf[siwRQE]())
	if err != nil {
		return nil, err
	}
	return &siwSRQ{mem: c.mem, recv: r}, nil
}

func (s *siwSRQ) capacity() int { return int(s.recv.mask) + 1 }

func (s *siwSRQ) postRecv(wrs []verbs.RecvWR) (int, error) { return postSiwRecvs(&s.recv, wrs) }

func (s *siwSRQ) modify(_ verbs.SRQAttr, mask verbs.SRQAttrMask, modify func(in []byte) error) error {
	if mask&verbs.SRQAttrMaxWR != 0 {
		return fmt.Errorf("%w: the size of an SRQ of siw is fixed", verbs.ErrUnsupported)
	}
	return modify(nil)
}

func (s *siwSRQ) unmap() { s.mem.unmap(s.recv.mem) }

// postSiwRecvs puts receives into the queue of a QP or an SRQ.
func postSiwRecvs(r *siwRing, wrs []verbs.RecvWR) (n int, err error) {
	if r.mem == nil {
		return 0, verbs.ErrQueueFull // a queue of no elements
	}
	for ; n < len(wrs); n++ {
		if !r.free() {
			return n, verbs.ErrQueueFull
		}
		sgl := wrs[n].SGL
		if len(sgl) > siwMaxSGE && siwCountSGEs(sgl) > siwMaxSGE {
			return n, fmt.Errorf("%w: %d SGEs, siw has room for %d", verbs.ErrInvalid, len(sgl), siwMaxSGE)
		}
		rqe := viewAt[siwRQE](r.element(r.next), 0)
		rqe.id = wrs[n].ID
		sges := putSiwSGEs(rqe.sge[:], sgl)
		r.push(siwWord(siwValid, uint8(sges), siwOpReceive))
	}
	return n, nil
}
