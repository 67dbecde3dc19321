package rxe

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// qp is the queue pair of an rxe device: a ring of send requests, and one
// of receives unless those come from an SRQ.
//
// The path of a send request: PostSend writes it into the ring, stores the
// producer index, and rings the doorbell once for all requests of the call.
// The kernel executes requests in order, then moves the consumer index, then
// writes the completion. Receives need no doorbell: the kernel looks for one
// when a message arrives.
type qp struct {
	mem    driver.Memory
	send   requests
	recv   requests
	srq    bool // there is no recv
	ud     bool
	sges   int // that a send request has room for
	inline int // bytes that it has room for
}

func (c *context) CreateQP(attr *driver.QPAttr, create func(driver.Udata) (driver.CreatedQP, error)) (driver.QP, error) {
	var maps createQPOut
	made, err := create(driver.Udata{Out: abi.BytesOf(&maps)})
	if err != nil {
		return nil, err
	}
	q := &qp{mem: c.mem, srq: attr.SRQ != nil, ud: attr.Type == verbs.QPTypeUD}
	if q.send, err = mapRequests(c.mem, maps.send, abi.SizeOf[sendWQE](), made.Cap.MaxSendWR); err != nil {
		return nil, err
	}
	q.inline = 1<<q.send.shift - abi.SizeOf[sendWQE]()
	q.sges = q.inline / abi.SizeOf[sge]()
	if q.srq {
		return q, nil
	}
	if q.recv, err = mapRequests(c.mem, maps.recv, abi.SizeOf[recvWQE](), made.Cap.MaxRecvWR); err != nil {
		q.Unmap()
		return nil, err
	}
	return q, nil
}

func (q *qp) Capacity() (send, recv int) { return int(q.send.most), int(q.recv.most) }

// Reset has nothing to do: the kernel has set its indexes to ours.
func (q *qp) Reset() {}

func (q *qp) Unmap() {
	q.mem.Unmap(q.send.mem)
	if q.recv.mem != nil {
		q.mem.Unmap(q.recv.mem)
	}
}

func (q *qp) PostSend(wrs []verbs.SendWR) (n int, doorbell bool, err error) {
	room, err := q.send.room()
	for ; n < len(wrs) && err == nil; n++ {
		if n >= room {
			err = verbs.ErrQueueFull
			break
		}
		if err = q.putSend(q.send.slot(n), &wrs[n]); err != nil {
			break
		}
	}
	if n == 0 {
		return 0, false, err
	}
	q.send.publish(n)
	return n, true, err
}

// WQEBytes is what putSend uses of a slot.
func (q *qp) WQEBytes(wr *verbs.SendWR) int {
	size := abi.SizeOf[sendWQE]()
	if wr.Flags&verbs.SendInline != 0 {
		return size + wr.Len()
	}
	return size + len(wr.SGL)*abi.SizeOf[sge]()
}

// maxMessage is RXE_PORT_MAX_MSG_SZ of the kernel's driver.
const maxMessage = 8 << 20

// putSend writes a request into its slot.
func (q *qp) putSend(slot []byte, wr *verbs.SendWR) error {
	wqe := abi.ViewAt[sendWQE](slot, 0)
	length, sges := 0, len(wr.SGL)
	switch {
	case wr.Opcode == verbs.OpLocalInv || wr.Opcode == verbs.OpBindMW || wr.Opcode == verbs.OpFlush:
		sges = 0
	case wr.Flags&verbs.SendInline != 0:
		if length = wr.Len(); length > q.inline {
			return fmt.Errorf("%w: %d inline bytes, there is room for %d", verbs.ErrInvalid, length, q.inline)
		}
		sges = min(length, 1)
	case sges > q.sges:
		return fmt.Errorf("%w: %d SGEs, there is room for %d", verbs.ErrInvalid, sges, q.sges)
	default:
		if length = wr.Len(); uint(length) > maxMessage {
			return fmt.Errorf("%w: message of %d bytes, the device has %d", verbs.ErrInvalid, length, maxMessage)
		}
	}
	// The kernel works in the request too; nothing of the one before may
	// remain, least of all its state.
	clear(slot[:abi.SizeOf[sendWQE]()])
	wqe.wrID, wqe.opcode, wqe.sendFlags, wqe.iova = wr.ID, uint32(wr.Opcode), uint32(wr.Flags), wr.RemoteAddr
	wqe.dma.length, wqe.dma.resid, wqe.dma.numSGE = uint32(length), uint32(length), uint32(sges)
	q.putOperation(wqe, slot, wr)
	payload := slot[abi.SizeOf[sendWQE]():]
	if wr.Flags&verbs.SendInline != 0 {
		for _, b := range wr.Inline {
			payload = payload[copy(payload, b):]
		}
		return nil
	}
	putSGEs(payload, wr.SGL[:sges])
	return nil
}

// putOperation writes what only some operations have.
func (q *qp) putOperation(wqe *sendWQE, slot []byte, wr *verbs.SendWR) {
	switch wr.Opcode {
	case verbs.OpSendWithImm, verbs.OpWriteWithImm:
		wqe.ex = networkOrder(wr.Imm)
	case verbs.OpSendWithInv, verbs.OpLocalInv:
		wqe.ex = wr.InvalidateRKey
	}
	switch wr.Opcode {
	case verbs.OpWrite, verbs.OpWriteWithImm, verbs.OpRead, verbs.OpAtomicWrite:
		*abi.ViewAt[rdmaOp](slot, offsetOp) = rdmaOp{remoteAddr: wr.RemoteAddr, rkey: wr.RKey}
		if wr.Opcode == verbs.OpAtomicWrite {
			// Its eight bytes always lie in the request.
			wqe.sendFlags &^= uint32(verbs.SendInline)
		}
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		*abi.ViewAt[atomicOp](slot, offsetOp) = atomicOp{
			remoteAddr: wr.RemoteAddr, compareAdd: wr.CompareAdd, swap: wr.Swap, rkey: wr.RKey,
		}
	case verbs.OpBindMW:
		*abi.ViewAt[bindOp](slot, offsetOp) = bind(wr.Bind)
	case verbs.OpFlush:
		*abi.ViewAt[flushOp](slot, offsetOp) = flushOp{
			remoteAddr: wr.RemoteAddr, rkey: wr.RKey, typ: uint8(wr.Flush.Type), level: uint8(wr.Flush.Level),
		}
		wqe.dma.length, wqe.dma.resid = wr.Flush.Length, wr.Flush.Length
	case verbs.OpSend, verbs.OpSendWithImm:
		if q.ud {
			*abi.ViewAt[udOp](slot, offsetOp) = udOp{
				remoteQPN: wr.Datagram.QPN, remoteQKey: wr.Datagram.QKey, ahNum: ahNumber(wr.Datagram.AH),
			}
		}
	}
}

// bind makes the request of a bind and tells the window the key that it
// has from then on. A window of type 1 gets its next key from us, as from any
// device.
func bind(b *verbs.Bind) bindOp {
	op := bindOp{addr: b.Addr, length: b.Length, rkey: b.RKey, access: uint32(b.Access)}
	if b.MR != nil {
		op.mrLKey = b.MR.LKey()
	}
	if w, ok := b.MW.Driver().(driver.Window); ok {
		op.mwRKey = w.Key()
		if b.MW.Type() == verbs.MWType1 {
			op.rkey = op.mwRKey&^0xff | (op.mwRKey+1)&0xff
		}
		w.SetKey(op.rkey)
	}
	return op
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) { return postRecvs(&q.recv, wrs) }
