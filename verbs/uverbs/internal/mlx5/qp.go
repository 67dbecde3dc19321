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
	datagrams  bool
	record     *[2]uint32
	bfreg      *uint64
	blueFlame  *blueFlame // nil: bfreg has doorbells alone
	send       sendQueue
	recv       recvQueue
	srq        *srq // nil: it has recv
	reservedIn *cq  // the send CQ, if the QP has one of its reserved entries
}

// CreateQP gives the device memory for both queues. That of the send queue is for
// two requests of the largest size at least.
func (c *context) CreateQP(attr *driver.QPAttr, create func(driver.Udata) (driver.CreatedQP, error)) (driver.QP, error) {
	q := &qp{ctx: c, typ: attr.Type, datagrams: attr.Type == verbs.QPTypeUD}
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
	q.send.signalAll = attr.SignalAll
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
	q.ctx.mem.Unmap(q.mem)
	if q.reservedIn != nil {
		q.reservedIn.giveBack()
	}
}

// PostSend writes WQEs and rings once.
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, doorbell bool, err error) {
	s := &q.send
	at := s.posted.Load() // which nobody else writes
	room := s.room()
	size := 0
	for ; n < len(wrs); n++ {
		if size, err = q.wqeSize(&wrs[n]); err != nil {
			break
		}
		if n >= room {
			err = verbs.ErrQueueFull
			break
		}
		blocks := uint32(size+blockSize-1) / blockSize
		q.write(at, size, &wrs[n], s.mark(at+blocks, &wrs[n]))
		s.last = at
		at += blocks
	}
	if n > 0 {
		s.posted.Store(at)
		q.ring(at, len(wrs) == 1 && size > segmentSize)
	}
	return n, false, err
}

// Ring tells the device of what is posted.
func (q *qp) Ring() {
	s := &q.send
	if posted := s.posted.Load(); posted != s.done.Load() {
		q.ring(posted, false)
	}
}

// Outstanding implements driver.DoorbellQP.
func (q *qp) Outstanding() int { return q.send.outstanding() }

// ring is for blocks posted so far. whole says that BlueFlame may have the WQE of the last request: it was posted by
// itself, for those before it would have to be read from memory first, and is more than a doorbell and the rest
// of its segment, as it is with rdma-core.
func (q *qp) ring(posted uint32, whole bool) {
	s := &q.send
	begin := int(s.last&s.mask) * blockSize
	end := begin + int(posted-s.last)*blockSize
	storeRecord(&q.record[1], bits.ReverseBytes32(posted&0xffff))
	switch {
	case q.blueFlame == nil:
		q.ctx.ring(q.bfreg, *abi.ViewAt[uint64](s.mem, begin))
	case whole && end <= len(s.mem):
		q.blueFlame.write(s.mem[begin:end])
	default:
		q.blueFlame.ring(*abi.ViewAt[uint64](s.mem, begin))
	}
}

// maxMessage is what a port takes (log_max_msg of the device).
const maxMessage = 1 << 30

// headerSize is how many bytes are before the data of a request.
func (q *qp) headerSize(op verbs.Opcode) (size int, ok bool) {
	size = segmentSize
	switch op {
	case verbs.OpSend, verbs.OpSendWithImm:
		if q.datagrams {
			size += datagramSize
		}
	case verbs.OpSendWithInv:
		return size, q.typ == verbs.QPTypeRC
	case verbs.OpBindMW, verbs.OpLocalInv: // keySize has the rest
		return size, !q.datagrams
	case verbs.OpWrite, verbs.OpWriteWithImm:
		size += segmentSize
		ok = !q.datagrams
		return size, ok
	case verbs.OpRead:
		return size + segmentSize, q.typ == verbs.QPTypeRC
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return size + 2*segmentSize, q.typ == verbs.QPTypeRC
	default:
		return 0, false
	}
	return size, true
}

// wqeSize is how many bytes the WQE of a request has, in whole segments.
func (q *qp) wqeSize(wr *verbs.SendWR) (int, error) {
	size, ok := q.headerSize(wr.Opcode)
	if !ok {
		return 0, fmt.Errorf("%w: %v on a QP of type %v of a ConnectX", verbs.ErrUnsupported, wr.Opcode, q.typ)
	}
	if wr.Opcode == verbs.OpBindMW || wr.Opcode == verbs.OpLocalInv {
		return q.keySize(wr)
	}
	length := wr.Len()
	switch {
	case uint(length) > maxMessage:
		return 0, fmt.Errorf("%w: message of %d bytes, the device has %d", verbs.ErrInvalid, length, maxMessage)
	case wr.Flags&verbs.SendInline == 0:
		for i := range wr.SGL {
			if wr.SGL[i].Length > 0 {
				size += segmentSize
			}
		}
	case wr.Opcode == verbs.OpRead || wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd:
		return 0, fmt.Errorf("%w: inline data of %v", verbs.ErrInvalid, wr.Opcode)
	case length > 0:
		size += (4 + length + segmentSize - 1) &^ (segmentSize - 1)
	}
	if size > q.send.perWR*blockSize {
		return 0, fmt.Errorf("%w: a request of %d bytes and %d SGEs is larger than those that the QP was made for", verbs.ErrInvalid, length, len(wr.SGL))
	}
	return size, nil
}

// WQEBytes is wqeSize of a request that was posted.
func (q *qp) WQEBytes(wr *verbs.SendWR) int {
	size, _ := q.wqeSize(wr) // 0 if it is none
	return size
}

// sendBlocks is how many basic blocks the largest request of a QP takes.
func sendBlocks(typ verbs.QPType, size verbs.QPCap) int {
	header := segmentSize
	switch typ {
	case verbs.QPTypeUD:
		header += datagramSize
	case verbs.QPTypeRC:
		header += 2 * segmentSize
	default:
		header += segmentSize
	}
	inline := (4 + size.MaxInline + segmentSize - 1) &^ (segmentSize - 1)
	largest := header + max(max(size.MaxSendSGE, 1)*segmentSize, inline)
	if typ != verbs.QPTypeUD {
		largest = max(largest, binding)
	}
	return (largest + blockSize - 1) / blockSize
}

// write writes a WQE of that size from block at on. Where it goes over the end of
// the queue it is made elsewhere and copied.
func (q *qp) write(at uint32, size int, wr *verbs.SendWR, marked bool) {
	s := &q.send
	begin := int(at&s.mask) * blockSize
	b := s.mem[begin:]
	over := size > len(b)
	if over {
		b = s.scratch[:]
	}
	q.encode(b[:size], at, wr)
	if marked {
		b[ctrlFlags] |= flagSignaled
	}
	if over {
		n := copy(s.mem[begin:], b[:size])
		copy(s.mem, b[n:size])
	}
	s.requests[at&s.mask] = request{
		id: wr.ID, end: at + uint32(size+blockSize-1)/blockSize, before: s.count,
		opcode: completions[wr.Opcode], marked: marked, gives: s.signalAll || wr.Flags&verbs.SendSignaled != 0,
	}
	s.count++
}

// completions are what the requests complete as.
var completions = [...]verbs.WCOpcode{
	verbs.OpSend: verbs.WCSend, verbs.OpSendWithImm: verbs.WCSend, verbs.OpSendWithInv: verbs.WCSend,
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteWithImm: verbs.WCWrite, verbs.OpRead: verbs.WCRead,
	verbs.OpCompareSwap: verbs.WCCompareSwap, verbs.OpFetchAdd: verbs.WCFetchAdd,
	verbs.OpBindMW: verbs.WCBindMW, verbs.OpLocalInv: verbs.WCLocalInv,
}

// encode writes the segments of a WQE. All of b is written.
func (q *qp) encode(b []byte, at uint32, wr *verbs.SendWR) {
	op, imm := byte(opSend), uint32(0)
	switch wr.Opcode {
	case verbs.OpSendWithImm:
		op, imm = opSendImm, wr.Imm
	case verbs.OpSendWithInv:
		op, imm = opSendInv, wr.InvalidateRKey
	case verbs.OpBindMW, verbs.OpLocalInv:
		op, imm = opUMR, q.putKeyChange(b[segmentSize:], wr)
	case verbs.OpWrite:
		op = opWrite
	case verbs.OpWriteWithImm:
		op, imm = opWriteImm, wr.Imm
	case verbs.OpRead:
		op = opRead
	case verbs.OpCompareSwap:
		op = opCompare
	case verbs.OpFetchAdd:
		op = opFetchAdd
	}
	be.PutUint32(b, at&0xffff<<8|uint32(op))
	be.PutUint32(b[4:], q.number<<8|uint32(len(b)/segmentSize))
	be.PutUint32(b[8:], 0)
	be.PutUint32(b[ctrlImm:], imm)
	if q.send.signalAll || wr.Flags&verbs.SendSignaled != 0 {
		b[ctrlFlags] |= flagSignaled
	}
	if wr.Flags&verbs.SendSolicited != 0 {
		b[ctrlFlags] |= flagSolicited
	}
	switch {
	case wr.Flags&verbs.SendFence != 0:
		b[ctrlFlags] |= flagFence
	case q.send.fence:
		b[ctrlFlags] |= flagAfterUMR
	}
	if q.send.fence = op == opUMR; q.send.fence {
		return
	}
	b = b[segmentSize:]
	switch wr.Opcode {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv:
		if q.datagrams {
			putDatagram(b, wr.Datagram)
			b = b[datagramSize:]
		}
	default:
		be.PutUint64(b, wr.RemoteAddr)
		be.PutUint64(b[8:], uint64(wr.RKey)<<32)
		b = b[segmentSize:]
	}
	switch wr.Opcode {
	case verbs.OpCompareSwap:
		be.PutUint64(b, wr.Swap)
		be.PutUint64(b[8:], wr.CompareAdd)
		b = b[segmentSize:]
	case verbs.OpFetchAdd:
		be.PutUint64(b, wr.CompareAdd)
		be.PutUint64(b[8:], 0)
		b = b[segmentSize:]
	}
	if wr.Flags&verbs.SendInline != 0 {
		putInline(b, wr)
		return
	}
	putSGEs(b, wr.SGL)
}

// putInline writes the one segment of inline data, which is all of b, if there is
// any.
func putInline(b []byte, wr *verbs.SendWR) {
	if len(b) == 0 {
		return
	}
	be.PutUint32(b, inlineFlag|uint32(wr.Len()))
	b = b[4:]
	for _, data := range wr.Inline {
		b = b[copy(b, data):]
	}
	clear(b)
}

// putSGEs writes a segment for each element but the empty ones: to the device a
// length of 0 is the largest.
func putSGEs(b []byte, sgl []verbs.SGE) (n int) {
	for i := range sgl {
		if sgl[i].Length == 0 {
			continue
		}
		segment := b[n*segmentSize:][:segmentSize]
		be.PutUint32(segment, sgl[i].Length)
		be.PutUint32(segment[4:], sgl[i].LKey)
		be.PutUint64(segment[8:], sgl[i].Addr)
		n++
	}
	return n
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
