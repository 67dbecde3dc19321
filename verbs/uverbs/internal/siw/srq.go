package siw

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// srq is a shared receive queue.
type srq struct {
	mem  driver.Memory
	recv ring
}

func (c *context) CreateSRQ(_ verbs.SRQAttr, create func(driver.Udata) (verbs.SRQAttr, error)) (driver.SRQ, error) {
	var out createSRQOut
	if _, err := create(driver.Udata{Out: abi.BytesOf(&out)}); err != nil {
		return nil, err
	}
	r, err := mapRing(c.mem, out.srqKey, out.numRQE, abi.SizeOf[rqEntry]())
	if err != nil {
		return nil, err
	}
	return &srq{mem: c.mem, recv: r}, nil
}

func (s *srq) Capacity() int { return int(s.recv.mask) + 1 }

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) { return postRecvs(&s.recv, wrs) }

func (s *srq) Modify(_ verbs.SRQAttr, mask verbs.SRQAttrMask, modify func(in []byte) error) error {
	if mask&verbs.SRQAttrMaxWR != 0 {
		return fmt.Errorf("%w: the size of an SRQ of siw is fixed", verbs.ErrUnsupported)
	}
	return modify(nil)
}

func (s *srq) Unmap() { s.mem.Unmap(s.recv.mem) }

// postRecvs puts receives into the queue of a QP or an SRQ.
func postRecvs(r *ring, wrs []verbs.RecvWR) (n int, err error) {
	if r.mem == nil {
		return 0, verbs.ErrQueueFull // a queue of no elements
	}
	for ; n < len(wrs); n++ {
		if !r.free() {
			return n, verbs.ErrQueueFull
		}
		sgl := wrs[n].SGL
		if len(sgl) > maxSGE && countSGEs(sgl) > maxSGE {
			return n, fmt.Errorf("%w: %d SGEs, siw has room for %d", verbs.ErrInvalid, len(sgl), maxSGE)
		}
		rqe := abi.ViewAt[rqEntry](r.element(r.next), 0)
		rqe.id = wrs[n].ID
		sges := putSGEs(rqe.sge[:], sgl)
		r.push(packWord(flagValid, uint8(sges), opReceive))
	}
	return n, nil
}
