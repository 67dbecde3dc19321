//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"math/bits"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// qp is the queue pair of a ConnectX: in one piece of memory the receive queue, if
// there is one, then the send queue, then the doorbell record.
//
//	word            written by
//	a WQE           us, before the record says that it is there
//	record, first   us: receives posted, 16 bits
//	record, second  us: basic blocks of the send queue posted, 16 bits
//
// The path of a send request: PostSend writes its WQE into the next basic blocks,
// then the record, then the first eight bytes of the last WQE to the bfreg. The
// device reads what the record says. A completion names the block in which its WQE
// begins, and all before it are done.
type qp struct {
	ctx        *context
	mem        []byte
	number     uint32
	typ        verbs.QPType
	operations *operations // of the type
	record     *[2]uint32
	bfreg      *uint64
	blueFlame  *blueFlame // nil: bfreg has doorbells alone
	ordered    bool       // the page of bfreg does not combine stores: storeDoorbell is all that a doorbell takes
	send       sendQueue
	recv       recvQueue
	srq        *srq // nil: it has recv
	reservedIn *cq  // the send CQ, if the QP has one of its reserved entries
}

// CreateQP gives the device memory for both queues. That of the send queue is for
// two requests of the largest size at least.
func (c *context) CreateQP(attr *driver.QPAttr, create func(driver.Udata) (driver.CreatedQP, error)) (driver.QP, error) {
	q := &qp{ctx: c, typ: attr.Type, operations: operationsOf(attr.Type)}
	wrs := max(attr.Cap.MaxSendWR, 1)
	perWR := sendBlocks(attr.Type, attr.Cap)
	blocks, receives, shift := roundUp(max(wrs, 2)*perWR), 0, 0
	if attr.SRQ != nil {
		q.srq, _ = attr.SRQ.(*srq)
	} else if attr.Cap.MaxRecvWR > 0 {
		shift = bits.Len(uint(roundUp(max(attr.Cap.MaxRecvSGE, 1)*segmentSize))) - 1
		receives = roundUp(max(attr.Cap.MaxRecvWR, blockSize>>shift))
	}
	switch {
	case wrs > maxEntries || blocks > int(c.out.maxSendBlocks) || perWR*blockSize > int(c.out.maxSendWQE):
		return nil, fmt.Errorf("%w: %d send requests of up to %d bytes", verbs.ErrInvalid, wrs, perWR*blockSize)
	case attr.Cap.MaxRecvWR > int(c.out.maxRecvWR) || 1<<shift > int(c.out.maxRecvWQE):
		return nil, fmt.Errorf("%w: %d receives of up to %d bytes", verbs.ErrInvalid, attr.Cap.MaxRecvWR, 1<<shift)
	}
	recvBytes, sendBytes := receives<<shift, blocks*blockSize
	mem, err := c.mem.Alloc(recvBytes + sendBytes + recordSize)
	if err != nil {
		return nil, err
	}
	q.mem, q.record = mem, abi.ViewAt[[2]uint32](mem, recvBytes+sendBytes)
	q.recv = newRecvQueue(mem[:recvBytes], shift, attr.Cap.MaxRecvWR)
	q.send = newSendQueue(mem[recvBytes:recvBytes+sendBytes], wrs, perWR)
	if attr.SignalAll {
		q.send.always = verbs.SendSignaled
	}
	if cq, ok := attr.SendCQ.(*cq); ok && cq.borrow() {
		q.reservedIn, q.send.marks = cq, true
	}
	in := createQPIn{
		buffer: abi.AddressOf(mem), record: abi.AddressOf(mem[recvBytes+sendBytes:]),
		sendSize: uint32(blocks), recvSize: uint32(receives), recvShift: uint32(shift),
	}
	if c.out.cqeVersion == 0 {
		in.index = defaultIndex
	}
	var out createQPOut
	made, err := create(driver.Udata{In: abi.BytesOf(&in), Out: abi.BytesOf(&out)})
	if err == nil {
		q.number = made.Num
		q.bfreg, err = c.bfreg(out.bfregIndex)
	}
	q.ordered = !c.combines
	if err == nil && c.combines {
		q.blueFlame = c.blueFlames[out.bfregIndex]
	}
	if err != nil {
		q.Unmap()
		return nil, err
	}
	return q, nil
}

// Capacity is what was asked for, though the queues are powers of two: the CQ may
// have been sized by it.
func (q *qp) Capacity() (send, recv int) { return q.send.most, q.recv.most }

// Reset empties the queues.
func (q *qp) Reset() {
	q.send.reset()
	q.recv.reset()
	storeRecord(&q.record[0], 0)
	storeRecord(&q.record[1], 0)
}

// Unmap frees the memory, which the device has let go of.
func (q *qp) Unmap() {
	q.ctx.mem.Free(q.mem)
	if q.reservedIn != nil {
		q.reservedIn.giveBack()
	}
}

// PostSend writes WQEs and rings once.
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, doorbell bool, err error) {
	s := &q.send
	at, room := s.posted.Load(), max(s.room(), 0) // posted is written by nobody else
	n, last := q.writeSmall(at, wrs[:min(len(wrs), room)])
	at += uint32(n)
	if n < len(wrs) {
		n, at, last, err = q.writeRest(at, wrs, n, room, last)
	}
	if n > 0 {
		s.last = at - last.blocks()
		s.posted.Store(at)
		if q.ordered {
			storeDoorbell(&q.record[1], bits.ReverseBytes32(at&0xffff), q.bfreg, bits.ReverseBytes64(last.first))
		} else {
			q.ring(at, last.first, len(wrs) == 1 && last.size > segmentSize)
		}
	}
	return n, false, err
}

// writeRest goes on behind the n requests that writeSmall has written. It returns how many are
// written then, the block behind them, and the last.
func (q *qp) writeRest(at uint32, wrs []verbs.SendWR, n, room int, last wqe) (int, uint32, wqe, error) {
	for n < len(wrs) {
		if n >= room {
			return n, at, last, verbs.ErrQueueFull
		}
		w, err := q.write(at, &wrs[n])
		if err != nil {
			return n, at, last, err
		}
		n, at, last = n+1, at+w.blocks(), w
		if k, w := q.writeSmall(at, wrs[n:min(len(wrs), room)]); k > 0 {
			n, at, last = n+k, at+uint32(k), w
		}
	}
	return n, at, last, nil
}

// Ring tells the device of what is posted.
func (q *qp) Ring() {
	s := &q.send
	if posted := s.posted.Load(); posted != s.done.Load() {
		q.ring(posted, be.Uint64(s.block(s.last)[:]), false)
	}
}

// Outstanding implements driver.DoorbellQP.
func (q *qp) Outstanding() int { return q.send.outstanding() }

// ring is for blocks posted so far; first are the first eight bytes of the last WQE. whole
// says that BlueFlame may have all of it: it was posted by itself, for those before it would
// have to be read from memory first, and is more than a doorbell and the rest of its segment,
// as it is with rdma-core.
func (q *qp) ring(posted uint32, first uint64, whole bool) {
	record, value, first := &q.record[1], bits.ReverseBytes32(posted&0xffff), bits.ReverseBytes64(first)
	if q.blueFlame == nil {
		q.ctx.ring(record, value, q.bfreg, first)
		return
	}
	storeRecord(record, value)
	last, size := q.send.from(q.send.last), int(posted-q.send.last)*blockSize
	if whole && size <= len(last) {
		q.blueFlame.write(last[:size])
	} else {
		q.blueFlame.ring(first)
	}
}

// PostRecv puts receives into the queue. The device needs no doorbell: it looks for
// one when a message arrives.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := q.recv.post(wrs)
	if n > 0 {
		storeRecord(&q.record[0], bits.ReverseBytes32(q.recv.posted.Load()&0xffff))
	}
	return n, err
}

// received finds the receive of a completion.
func (q *qp) received(wc *verbs.WC, index uint16) (wanted bool, err error) {
	if q.srq != nil {
		return q.srq.completed(wc, index)
	}
	return q.recv.completed(wc, index)
}
