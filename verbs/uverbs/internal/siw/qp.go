package siw

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// qp is the queue pair of a siw device: a ring of send requests, and one of
// receives unless those come from an SRQ or there are none.
//
// The path of a send request: PostSend writes it into the next element, the
// word last, and rings the doorbell if the kernel may have stopped looking.
// The kernel copies the request, clears the word, sends, and writes a
// completion if one was asked for. The element is free before the request is
// done. Receives need no doorbell: the kernel looks for one when a message
// arrives; if there is none it ends the connection, for iWARP has no RNR.
type qp struct {
	mem       driver.Memory
	send      ring
	recv      ring // without memory if there is none
	cap       verbs.QPCap
	signalAll bool
}

func (c *context) CreateQP(attr *driver.QPAttr, create func(driver.Udata) (driver.CreatedQP, error)) (driver.QP, error) {
	var out createQPOut
	made, err := create(driver.Udata{Out: abi.BytesOf(&out)})
	if err != nil {
		return nil, err
	}
	q := &qp{mem: c.mem, cap: made.Cap, signalAll: attr.SignalAll}
	if q.send, err = mapRing(c.mem, out.sqKey, out.numSQE, abi.SizeOf[sqEntry]()); err != nil {
		return nil, err
	}
	if attr.SRQ != nil || out.numRQE == 0 {
		return q, nil
	}
	if q.recv, err = mapRing(c.mem, out.rqKey, out.numRQE, abi.SizeOf[rqEntry]()); err != nil {
		c.mem.Unmap(q.send.mem)
		return nil, err
	}
	return q, nil
}

// Capacity is what was asked for, though the rings are powers of two: the CQ
// may have been sized by it.
func (q *qp) Capacity() (send, recv int) {
	if q.recv.mem != nil {
		recv = min(q.cap.MaxRecvWR, int(q.recv.mask)+1)
	}
	return min(q.cap.MaxSendWR, int(q.send.mask)+1), recv
}

// Reset has nothing to do: the kernel has no way back to RESET.
func (q *qp) Reset() {}

// TakeBack frees the elements that the kernel has not taken, oldest first.
func (q *qp) TakeBack() (sends, recvs []uint64) {
	return q.send.takeBack(), q.recv.takeBack()
}

// MayModify leaves the transitions into INIT and into ERR to the program. The others the
// kernel's connection manager makes, and there is no way back to RESET (RFC 5040 and
// 5041 have no such states).
func (q *qp) MayModify(from, to verbs.QPState) error {
	switch {
	case to == from, to == verbs.QPStateInit && from == verbs.QPStateReset, to == verbs.QPStateErr && from != verbs.QPStateReset:
		return nil
	case to == verbs.QPStateErr:
		return fmt.Errorf("%w: a QP in %v cannot fail", verbs.ErrInvalid, from)
	}
	return fmt.Errorf("%w: an iWARP QP goes from %v to %v by its connection manager only", verbs.ErrUnsupported, from, to)
}

// State believes the kernel only that the QP has failed: before 6.4 it tells nothing else.
func (q *qp) State(reported, known verbs.QPState) verbs.QPState {
	if reported == verbs.QPStateErr {
		return reported
	}
	return known
}

// PostEmptyWrite posts a WRITE of no bytes.
func (q *qp) PostEmptyWrite(id uint64) (doorbell bool) {
	if isValid(q.send.word(q.send.next - 1).Load()) {
		return false // the kernel has not taken the one before yet
	}
	_, doorbell, _ = q.PostSend([]verbs.SendWR{{ID: id, Opcode: verbs.OpWrite}})
	return doorbell
}

// Refused: siw refuses the doorbell while it takes the QP out of RTS, and
// flushes the requests, or they are taken back then. For a request that it
// cannot execute it refuses it too, and leaves the request at the head of the
// queue: the QP has failed then.
func (q *qp) Refused(err error) (stuck bool, _ error) {
	switch {
	case errors.Is(err, syscall.ENOTCONN):
		return false, nil
	case errors.Is(err, syscall.EINVAL):
		return true, nil
	}
	return false, err
}

func (q *qp) Unmap() {
	q.mem.Unmap(q.send.mem)
	if q.recv.mem != nil {
		q.mem.Unmap(q.recv.mem)
	}
}

func (q *qp) PostSend(wrs []verbs.SendWR) (n int, doorbell bool, err error) {
	first := q.send.next
	for ; n < len(wrs); n++ {
		if !q.send.free() {
			err = verbs.ErrQueueFull
			break
		}
		var word uint32
		if word, err = q.putSend(&wrs[n]); err != nil {
			break
		}
		q.send.push(word)
	}
	switch {
	case n == 0:
		return 0, false, err
	case n > int(q.send.mask):
		doorbell = true // the one before the first is the last
	default:
		// If the kernel has still to take the one before ours, it will find
		// ours behind it. This is read after ours were written, so that
		// either it finds them or we see that it has passed.
		doorbell = !isValid(q.send.word(first - 1).Load())
	}
	return n, doorbell, err
}

// maxMessage bounds a request: the kernel's driver adds up lengths in an
// int.
const maxMessage = math.MaxInt32

// operation is how siw calls an operation.
func operation(op verbs.Opcode) (uint8, bool) {
	switch op {
	case verbs.OpWrite:
		return opWrite, true
	case verbs.OpSend:
		return opSend, true
	case verbs.OpSendWithInv:
		return opSendRemoteInv, true
	case verbs.OpRead:
		return opRead, true
	}
	return 0, false
}

// putSend fills the next element but for its word, which it returns. What the
// kernel would refuse is refused here: there it would block the queue for
// good, because the driver leaves a bad request where it is.
func (q *qp) putSend(wr *verbs.SendWR) (word uint32, err error) {
	op, ok := operation(wr.Opcode)
	if !ok {
		return 0, fmt.Errorf("%w: %v on siw", verbs.ErrUnsupported, wr.Opcode)
	}
	flags := uint16(flagValid)
	if q.signalAll || wr.Flags&verbs.SendSignaled != 0 {
		flags |= flagSignaled
	}
	if wr.Flags&verbs.SendSolicited != 0 {
		flags |= flagSolicited
	}
	// Reads are done in order anyway, and the kernel takes none with a fence.
	if wr.Flags&verbs.SendFence != 0 && wr.Opcode != verbs.OpRead {
		flags |= flagReadFence
	}
	length := wr.Len()
	inline := wr.Flags&verbs.SendInline != 0
	switch {
	case uint(length) > maxMessage: // as an int of 32 bits it may have come out negative
		return 0, fmt.Errorf("%w: message of %d bytes, siw has %d", verbs.ErrInvalid, length, maxMessage)
	case inline && wr.Opcode == verbs.OpSendWithInv:
		return 0, fmt.Errorf("%w: inline data of %v on siw", verbs.ErrUnsupported, wr.Opcode)
	case inline && length > maxInline:
		return 0, fmt.Errorf("%w: %d inline bytes, siw has room for %d", verbs.ErrInvalid, length, maxInline)
	case !inline && len(wr.SGL) > maxSGE && countSGEs(wr.SGL) > maxSGE:
		return 0, fmt.Errorf("%w: %d SGEs, siw has room for %d", verbs.ErrInvalid, len(wr.SGL), maxSGE)
	case wr.Opcode == verbs.OpRead && len(wr.SGL) > 1 && countSGEs(wr.SGL) > 1:
		return 0, fmt.Errorf("%w: READ into %d SGEs, siw has one", verbs.ErrInvalid, len(wr.SGL))
	}
	slot := q.send.element(q.send.next)
	sqe := abi.ViewAt[sqEntry](slot, 0)
	sqe.id, sqe.raddr, sqe.rkey = wr.ID, wr.RemoteAddr, wr.RKey
	if wr.Opcode == verbs.OpSendWithInv {
		sqe.rkey = wr.InvalidateRKey
	}
	var sges int
	if inline {
		sges = min(length, 1)
		if sges > 0 {
			flags |= flagInline
		}
		sqe.sge[0] = sge{length: uint32(length)}
		data := slot[abi.SizeOf[sqEntry]()-maxInline:]
		for _, b := range wr.Inline {
			data = data[copy(data, b):]
		}
	} else {
		sqe.sge[0] = sge{} // a READ always has one
		sges = putSGEs(sqe.sge[:], wr.SGL)
		if sges == 1 && wr.Opcode != verbs.OpRead {
			sges = splitShort(&sqe.sge)
		}
	}
	return packWord(flags, uint8(sges), op), nil
}

// WQEBytes is the same for all requests.
func (q *qp) WQEBytes(*verbs.SendWR) int { return abi.SizeOf[sqEntry]() }

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) { return postRecvs(&q.recv, wrs) }

// putSGEs writes elements and returns how many. Empty ones are left out:
// the kernel's driver takes no memory region for them and yet looks into it, which crashes the
// kernel (siw_tx_hdt of drivers/infiniband/sw/siw/siw_qp_tx.c, kernel 6.1).
func putSGEs(dst []sge, sgl []verbs.SGE) (n int) {
	for i := range sgl {
		if sgl[i].Length > 0 {
			dst[n] = sge{addr: sgl[i].Addr, length: sgl[i].Length, lkey: sgl[i].LKey}
			n++
		}
	}
	return n
}

const (
	maxInHeader = 32   // MAX_HDR_INLINE: a payload that goes with the header, of one SGE
	leastPage   = 4096 // divides the size of any machine's pages
)

// splitShort makes two SGEs of a short one that lies in two pages, and returns how many
// there are. The kernel's driver copies a payload of one short SGE behind the header,
// and in its thread it takes the length of the second page's part for that of the
// first's: the peer gets other bytes, of memory behind the first page too (siw_try_1seg
// of drivers/infiniband/sw/siw/siw_qp_tx.c, kernels 6.1 and 6.12). It copies nothing of
// two.
func splitShort(sges *[maxSGE]sge) int {
	s := sges[0]
	first := uint32(leastPage - s.addr%leastPage)
	if s.length > maxInHeader || s.length <= first {
		return 1
	}
	sges[0].length = first
	sges[1] = sge{addr: s.addr + uint64(first), length: s.length - first, lkey: s.lkey}
	return 2
}

// countSGEs is how many elements putSGEs would write.
func countSGEs(sgl []verbs.SGE) (n int) {
	for i := range sgl {
		if sgl[i].Length > 0 {
			n++
		}
	}
	return n
}
