package rxe

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// ring is a queue that the rxe driver of the kernel and this process share
// (struct rxe_queue_buf of rdma/rdma_user_rxe.h): a header and a power of two
// of elements, whose size is a power of two too.
//
//	word            written by
//	log, mask       the kernel, once; read once by openRing
//	producer index  us on queues of requests, the kernel on a CQ
//	consumer index  the kernel on queues of requests, us on a CQ
//
// Indexes are kept below the number of elements. The ring is empty if they
// are equal, so that one element is never used. An element belongs to the
// producer until it stores its index, and then to the consumer until that
// one does. The index that is ours has a copy here, which counts; the word in
// memory is only written. The other one is read once, checked, and then used.
type ring struct {
	mem      []byte
	shift    uint   // log2 of the size of an element
	mask     uint32 // number of elements less one
	producer *atomic.Uint32
	consumer *atomic.Uint32
}

// errRing: the memory cannot be a queue.
var errRing = errors.New("uverbs: queue in shared memory is corrupt")

// openRing looks at memory that was just mapped.
func openRing(mem []byte, elementSize int) (ring, error) {
	if len(mem) < offsetElements {
		return ring{}, fmt.Errorf("%w: %d bytes", errRing, len(mem))
	}
	log := abi.WordAt(mem, offsetLogElement).Load()
	mask := abi.WordAt(mem, offsetMask).Load()
	elements := uint64(mask) + 1
	switch {
	case log > 20 || 1<<log < elementSize:
		return ring{}, fmt.Errorf("%w: elements of 2^%d bytes, %d needed", errRing, log, elementSize)
	case elements&(elements-1) != 0 || offsetElements+elements<<log > uint64(len(mem)):
		return ring{}, fmt.Errorf("%w: index mask %#x with elements of 2^%d bytes in %d bytes", errRing, mask, log, len(mem))
	}
	return ring{
		mem: mem, shift: uint(log), mask: mask,
		producer: abi.WordAt(mem, offsetProducer), consumer: abi.WordAt(mem, offsetConsumer),
	}, nil
}

// element is the memory of element i.
func (r *ring) element(i uint32) []byte {
	off := offsetElements + int(i&r.mask)<<r.shift
	return r.mem[off : off+1<<r.shift]
}

// index reads an index that the kernel writes.
func (r *ring) index(word *atomic.Uint32) (uint32, error) {
	i := word.Load()
	if i > r.mask {
		return 0, errRing
	}
	return i, nil
}

// requests is a ring of requests, of which we are the producer.
type requests struct {
	ring
	next uint32 // our index
	most uint32 // requests that we let into it
}

// mapRequests maps a ring that is to hold up to most requests.
func mapRequests(mem driver.Memory, m mapping, elementSize, most int) (requests, error) {
	b, err := mem.Map(m.offset, int(m.size), driver.MayRead|driver.MayWrite)
	if err != nil {
		return requests{}, err
	}
	r, err := openRing(b, elementSize)
	q := requests{ring: r, most: min(uint32(max(most, 0)), r.mask)}
	if err == nil {
		q.next, err = q.index(q.producer)
	}
	if err != nil {
		mem.Unmap(b)
		return requests{}, err
	}
	return q, nil
}

// room is how many more requests the queue takes. The kernel frees the slot
// of a request before it writes its completion, so that whoever has polled
// the completion finds the slot free.
func (q *requests) room() (int, error) {
	head, err := q.index(q.consumer)
	if err != nil {
		return 0, err
	}
	return int(q.most) - int((q.next-head)&q.mask), nil
}

// publish hands n more requests to the kernel.
func (q *requests) publish(n int) {
	q.next = (q.next + uint32(n)) & q.mask
	q.producer.Store(q.next)
}

// slot is the memory of the i-th request that is not published yet.
func (q *requests) slot(i int) []byte { return q.element(q.next + uint32(i)) }
