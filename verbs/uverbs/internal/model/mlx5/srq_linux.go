//go:build amd64 || arm64

package mlx5

import (
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A receiveQueue is a ring of receive WQEs, a QP's own, or the list of an SRQ.
type receiveQueue struct {
	context       *ucontext
	pd            *fabric.PD
	buffer        uint64
	record        uint64 // the word with the number of WQEs posted, modulo 2^16
	size          uint32 // entries, a power of two
	shift         uint32
	consumed      uint16
	returned      uint16 // consumed, and the CQE is in the program's memory
	head          uint16 // SRQ: index of the next WQE
	shared        bool
	overfull      bool // or its record makes no sense, and that was said
	handle        uint32
	srqn          uint32
	user          uint64
	users         int
	limit         uint32
	events        uint32
	maxWR, maxSGE uint32
	// Of an XRC domain:
	domain *openDomain
	cq     *completionQueue
	uidx   uint32
}

// Next returns the WQE that is first, without consuming it, and its index. It is false if
// there is none.
func (r *receiveQueue) Next() (list []fabric.Scatter, index uint16, ok bool) {
	var record [4]byte
	if r.size == 0 || r.context.memory.Read(r.record, record[:]) != nil ||
		uint16(be.Uint32(record[:])) == r.consumed {
		return nil, 0, false
	}
	switch posted := uint16(be.Uint32(record[:])); {
	case r.overfull:
	case be.Uint32(record[:])>>16 != 0:
		r.overfull = true
		r.context.device.Fabric().Violation("receive queue at %#x: its doorbell record is %#x", r.buffer, record)
	case uint32(posted-r.returned) > r.size:
		r.overfull = true
		r.context.device.Fabric().Violation("receive queue at %#x: %d WQEs are posted to a queue of %d", r.buffer, posted-r.returned, r.size)
	}
	index = r.consumed
	if r.shared {
		index = r.head
	}
	wqe := make([]byte, 1<<r.shift)
	if r.context.memory.Read(r.at(index), wqe) != nil {
		return nil, 0, false
	}
	if r.shared {
		wqe = wqe[segmentSize:]
	}
	return parseScatter(wqe), index, true
}

func (r *receiveQueue) at(index uint16) uint64 {
	return r.buffer + uint64(uint32(index)&(r.size-1))<<r.shift
}

// Consume takes the first WQE.
func (r *receiveQueue) Consume() {
	r.consumed++
	if !r.shared {
		return
	}
	var next [4]byte // struct mlx5_wqe_srq_next_seg
	_ = r.context.memory.Read(r.at(r.head), next[:])
	r.head = be.Uint16(next[2:])
	if r.limit == 0 {
		return
	}
	var record [4]byte
	if r.context.memory.Read(r.record, record[:]) == nil && uint32(uint16(be.Uint32(record[:]))-r.consumed) < r.limit {
		r.limit = 0
		r.events++
		r.context.event(fabric.EventSRQLimit, r.user)
	}
}

// PD is that of the queue.
func (r *receiveQueue) PD() *fabric.PD { return r.pd }

// Shared says that it is an SRQ.
func (r *receiveQueue) Shared() bool { return r.shared }

func (c *ucontext) createSRQ(r *frame.Request) unix.Errno {
	b := r.Core
	pd, ok := lookup[*fabric.PD](c, le.Uint32(b[16:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, __uverbs_create_xsrq
	}
	s := &receiveQueue{context: c, pd: pd, shared: true, user: le.Uint64(b[8:])}
	return s.create(r, le.Uint32(b[20:]), le.Uint32(b[24:]))
}

// create makes an SRQ for so many WQEs. At the limit of the request, of which the driver makes nothing, the
// model does not look either (srq.c, mlx5_ib_create_srq).
func (r *receiveQueue) create(q *frame.Request, wr, sge uint32) unix.Errno {
	const sizeOfRequest = 32 // of struct mlx5_ib_create_srq
	c := r.context
	m := make([]byte, sizeOfRequest)
	known := copy(m, q.Driver)
	r.uidx = le.Uint32(m[24:])
	switch {
	case wr > maxSRQWR || sge > maxSGE:
		return unix.EINVAL // srq.c, mlx5_ib_create_srq
	case le.Uint32(m[20:]) != 0 || le.Uint32(m[28:]) != 0 || !zero(q.Driver[known:]):
		return unix.EINVAL // srq.c, create_srq_user: reserved0, reserved1. It asks for none of the flags
	case r.domain != nil && !c.validIndex(r.uidx):
		return unix.EINVAL // mlx5_ib.h, get_srq_user_index
	}
	r.buffer, r.record, r.size = le.Uint64(m), le.Uint64(m[8:]), roundUp(wr+1)
	// srq.c, mlx5_ib_create_srq: the size of a WQE follows from the number of its segments.
	r.shift = uint32(bits.Len32(roundUp(max(32, segmentSize*(1+sge))))) - 1
	r.maxWR, r.maxSGE = r.size-1, sge
	if !c.readable(r.buffer, uint64(r.size)<<r.shift) || !c.readable(r.record, 4) {
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	if misplaced(r.buffer, offsetUnit, r.record) {
		return unix.EINVAL // srq.c, create_srq_user
	}
	r.pd.Users++
	r.srqn = c.device.Next()
	r.handle = c.add(r)
	number := uint32(0) // uverbs_cmd.c, __uverbs_create_xsrq
	if r.domain != nil {
		r.join()
		number = r.srqn
	}
	return q.Answer(words(r.handle, r.maxWR, r.maxSGE, number), words(r.srqn, 0))
}

func (c *ucontext) modifySRQ(r *frame.Request) unix.Errno {
	const maskMaxWR, maskLimit = 1, 2
	s, ok := lookup[*receiveQueue](c, le.Uint32(r.Core))
	mask, limit := le.Uint32(r.Core[4:]), le.Uint32(r.Core[12:])
	if !ok || mask&maskMaxWR != 0 {
		return unix.EINVAL // srq.c, mlx5_ib_modify_srq: SRQs are not resized
	}
	if mask&maskLimit != 0 {
		if limit >= s.size {
			return unix.EINVAL // the same
		}
		s.limit = limit
	}
	return 0
}

func (c *ucontext) querySRQ(r *frame.Request) unix.Errno {
	s, ok := lookup[*receiveQueue](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_query_srq
	}
	return r.Answer(words(s.maxWR, s.maxSGE, s.limit, 0), nil)
}

func (c *ucontext) destroySRQ(r *frame.Request) unix.Errno {
	s, ok := lookup[*receiveQueue](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if c.inUse(s.users > 0) {
		return unix.EBUSY // core/verbs.c, ib_destroy_srq_user
	}
	s.pd.Users--
	if s.domain != nil {
		s.leave()
	}
	s.events -= c.unread(s.user, fabric.EventSRQLimit)
	delete(c.objects, s.handle)
	return r.Answer(words(s.events), nil)
}
