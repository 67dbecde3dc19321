//go:build amd64 || arm64

package ibverbs

import (
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// The path of a post: the requests, their lists of memory and their inline data are laid
// out in the arena of the queue, as many as there is room for, and the library puts them
// into the device's queue with one call and one doorbell. It names the first that it
// does not take.

// sendBytes is the most that a request takes in the arena, and recvBytes the same of a
// receive.
func sendBytes(sges, inline int) int {
	return int(unsafe.Sizeof(ibvSendWR{})) + max(sges, 1)*int(unsafe.Sizeof(ibvSGE{})) + inline + 16
}

func recvBytes(sges int) int {
	return int(unsafe.Sizeof(ibvRecvWR{})) + sges*int(unsafe.Sizeof(ibvSGE{})) + 16
}

// PostSend posts requests. One that gives a completion holds its slot until that was
// polled. The library would let the slot go before where the device says that it is done;
// but then nobody who sizes a CQ by what its QPs can have outstanding would be safe from
// overrunning it.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.send.Lock()
	defer q.send.Unlock()
	if q.gone {
		return 0, verbs.ErrClosed
	}
	switch state := verbs.QPState(q.state.Load()); state {
	case verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR:
		return 0, fmt.Errorf("%w: a QP in %v sends nothing", verbs.ErrInvalid, state)
	}
	if q.dev.gone.Load() {
		return 0, errGone
	}
	fit, signaled := q.fitting(wrs)
	n, err := q.postAll(wrs[:fit], 0)
	if err == verbs.ErrQueueFull && q.marks.spare {
		q.sendCQ.drain()
		n, err = q.postAll(wrs[:fit], n)
	}
	if n < fit {
		signaled = q.countSignaled(wrs[:n])
	} else if err == nil && fit < len(wrs) {
		err = verbs.ErrQueueFull
	}
	q.send.posted += uint64(signaled)
	return n, err
}

// postAll posts requests behind the first n, as many at once as there is room for, and returns how
// many are posted then. The caller holds the send lock.
func (q *qp) postAll(wrs []verbs.SendWR, n int) (int, error) {
	for n < len(wrs) {
		var k int
		var err error
		if wrs[n].Opcode == verbs.OpBindMW {
			k, err = q.postBind(&wrs[n], q.send.posted+uint64(q.countSignaled(wrs[:n])))
		} else {
			k, err = q.postSends(wrs[n:])
		}
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// postSends posts what there is room for in the arena, before a bind. The caller
// holds the send lock.
func (q *qp) postSends(wrs []verbs.SendWR) (int, error) {
	room := &q.send.room
	room.used = 0
	bad := in[uintptr](room)
	*bad = 0
	first := room.used
	var last *ibvSendWR
	laid := 0
	run, marked := q.marks.run, -1
	var unfit error
	for i := range wrs {
		if wrs[i].Opcode == verbs.OpBindMW || room.left() < sendBytes(len(wrs[i].SGL), inlineBytes(&wrs[i])) {
			break
		}
		if unfit = q.hold(&wrs[i]); unfit != nil {
			break
		}
		to := q.laySend(&wrs[i])
		if q.completes(&wrs[i]) {
			run = 0
		} else if run++; q.marks.mark(wrs[i].ID, run, (q.sendLimit+1)/2) {
			to.wrID, to.sendFlags = markedID, to.sendFlags|uint32(verbs.SendSignaled)
			run, marked = 0, i
		}
		if last != nil {
			last.next = uintptr(unsafe.Pointer(to))
		}
		last = to
		laid++
	}
	if laid == 0 && unfit == nil { // more memory than the QP was made for
		unfit = fmt.Errorf("%w: the request is longer than those of the QP", verbs.ErrInvalid)
	}
	if laid == 0 {
		return 0, unfit
	}
	defer q.letGo(wrs[:laid])
	head := uintptr(unsafe.Pointer(&room.mem[first]))
	post := call{fn: q.dev.ops[opPostSend], args: [6]uintptr{q.address, head, uintptr(unsafe.Pointer(bad))}}
	post.do()
	n := int32(post.result)
	if n == 0 {
		q.marks.run = run
		return laid, unfit
	}
	taken := 0
	for at := head; at != *bad && at != 0; at = view[ibvSendWR](at).next {
		taken++
	}
	taken = min(taken, laid)
	if marked >= taken {
		q.marks.refused()
	}
	for i := range wrs[:taken] {
		if i == marked || q.completes(&wrs[i]) {
			q.marks.run = 0
		} else {
			q.marks.run++
		}
	}
	return taken, refused("ibv_post_send", n)
}

// hold keeps the address handle of a datagram until letGo: the library would
// read what it has freed.
func (q *qp) hold(wr *verbs.SendWR) error {
	if q.typ != verbs.QPTypeUD {
		return nil
	}
	a, ok := wr.Datagram.AH.Driver().(*ah)
	if !ok {
		return fmt.Errorf("%w: address handle of another provider", verbs.ErrInvalid)
	}
	return a.life.use()
}

func (q *qp) letGo(wrs []verbs.SendWR) {
	if q.typ != verbs.QPTypeUD {
		return
	}
	for i := range wrs {
		wrs[i].Datagram.AH.Driver().(*ah).life.release()
	}
}

// completes reports whether the caller is told of the request.
func (q *qp) completes(wr *verbs.SendWR) bool {
	return q.signalAll || wr.Flags&verbs.SendSignaled != 0
}

// inlineBytes is the length of inline data.
func inlineBytes(wr *verbs.SendWR) int {
	if wr.Flags&verbs.SendInline == 0 {
		return 0
	}
	return wr.Len()
}

// laySend lays a request out. There is room for it.
func (q *qp) laySend(wr *verbs.SendWR) *ibvSendWR {
	room := &q.send.room
	to := in[ibvSendWR](room)
	*to = ibvSendWR{wrID: wr.ID, opcode: int32(wr.Opcode), sendFlags: uint32(wr.Flags), remoteSRQ: wr.RemoteSRQ}
	switch wr.Opcode {
	case verbs.OpSendWithImm, verbs.OpWriteWithImm:
		to.imm = bits.ReverseBytes32(wr.Imm)
	case verbs.OpSendWithInv, verbs.OpLocalInv:
		to.imm = wr.InvalidateRKey
	}
	switch wr.Opcode {
	case verbs.OpWrite, verbs.OpWriteWithImm, verbs.OpRead:
		to.remote(wr.RemoteAddr, wr.RKey)
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		to.atomic(wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap)
	default:
		if q.typ == verbs.QPTypeUD {
			to.datagram(wr.Datagram.AH.Driver().(*ah).address, wr.Datagram.QPN, wr.Datagram.QKey)
		}
	}
	if wr.Flags&verbs.SendInline == 0 {
		to.sgList, to.numSGE = layList(room, wr.SGL)
		return to
	}
	length := wr.Len()
	if length == 0 {
		return to
	}
	data := unsafe.Slice((*byte)(room.take(uintptr(length))), length)
	list := in[ibvSGE](room)
	*list = ibvSGE{addr: uint64(uintptr(unsafe.Pointer(&data[0]))), length: uint32(length)}
	for _, piece := range wr.Inline {
		data = data[copy(data, piece):]
	}
	to.sgList, to.numSGE = uintptr(unsafe.Pointer(list)), 1
	return to
}

// remote, atomic and datagram fill the union wr of a request: struct rdma, atomic and ud.
func (to *ibvSendWR) remote(addr uint64, rkey uint32) {
	to.wr[0], to.wr[1] = addr, uint64(rkey)
}

func (to *ibvSendWR) atomic(addr uint64, rkey uint32, compareAdd, swap uint64) {
	to.wr = [4]uint64{addr, compareAdd, swap, uint64(rkey)}
}

func (to *ibvSendWR) datagram(ah uintptr, qpn, qkey uint32) {
	// two words of a processor that is little-endian
	to.wr[0], to.wr[1] = uint64(ah), uint64(qpn)|uint64(qkey)<<32
}

// layList lays a list of memory out, without pieces of no bytes: to many devices a length of
// 0 means 2 GiB.
func layList(room *arena, list []verbs.SGE) (address uintptr, n int32) {
	for i := range list {
		if list[i].Length == 0 {
			continue
		}
		to := in[ibvSGE](room)
		*to = ibvSGE{addr: list[i].Addr, length: list[i].Length, lkey: list[i].LKey}
		if n++; n == 1 {
			address = uintptr(unsafe.Pointer(to))
		}
	}
	return address, n
}

// refused makes an error of what the library answered to a post. Drivers tell by ENOMEM,
// some by EAGAIN, that a queue is full, before they touch it.
func refused(function string, n int32) error {
	switch errno := unix.Errno(max(n, -n)); errno {
	case unix.ENOMEM, unix.EAGAIN, unix.ENOSPC:
		return verbs.ErrQueueFull
	default:
		return failed(function, errno)
	}
}

// fitting is how many requests there is room for, and how many of those give
// a completion.
func (q *qp) fitting(wrs []verbs.SendWR) (n, signaled int) {
	if q.failed.Load() {
		// Every request completes now, and which ones have cannot be told
		// from what is polled.
		return len(wrs), q.countSignaled(wrs)
	}
	free := q.sendLimit - int(q.send.posted-q.sendDone.Load())
	for i := range wrs {
		if q.completes(&wrs[i]) {
			if signaled >= free {
				return i, signaled
			}
			signaled++
		}
	}
	return len(wrs), signaled
}

func (q *qp) countSignaled(wrs []verbs.SendWR) (n int) {
	if q.signalAll {
		return len(wrs)
	}
	for i := range wrs {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			n++
		}
	}
	return n
}

// completed counts a completion as it is polled, and reports whether it is the first that shows that
// a QP of rxe has failed, see flush. The CQ calls it.
func (q *qp) completed(wc *verbs.WC) (failed bool) {
	switch {
	case wc.Status != verbs.WCSuccess:
		// On a service that is not reliable a QP goes on if a message found a receive in an
		// SRQ and was not allowed to go where it wanted.
		if q.typ == verbs.QPTypeRC || q.typ == verbs.QPTypeXRCInitiator || wc.Status != verbs.WCRemInvReqErr && wc.Status != verbs.WCRemAccessErr {
			return !q.failed.Swap(true) && q.dev.entry.DriverID == rdmahost.DriverRXE
		}
	case wc.Opcode < verbs.WCRecv:
		q.sendDone.Add(1)
	case q.srq == nil:
		q.recvDone.Add(1)
	}
	return false
}

// PostRecv posts receives.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := q.putRecvs(wrs)
	if n > 0 && q.failed.Load() && q.dev.entry.DriverID == rdmahost.DriverRXE {
		q.flush()
	}
	return n, err
}

func (q *qp) putRecvs(wrs []verbs.RecvWR) (int, error) {
	q.recv.Lock()
	defer q.recv.Unlock()
	switch {
	case q.gone:
		return 0, verbs.ErrClosed
	case q.srq != nil:
		return 0, fmt.Errorf("%w: the QP receives from an SRQ", verbs.ErrInvalid)
	case verbs.QPState(q.state.Load()) == verbs.QPStateReset:
		return 0, fmt.Errorf("%w: a QP in RESET receives nothing", verbs.ErrInvalid)
	case q.dev.gone.Load():
		return 0, errGone
	}
	fit := len(wrs)
	if !q.failed.Load() {
		fit = min(fit, max(0, q.recvLimit-int(q.recv.posted-q.recvDone.Load())))
	}
	n, err := q.recv.postRecvs("ibv_post_recv", q.dev.ops[opPostRecv], q.address, wrs[:fit])
	if err == nil && fit < len(wrs) {
		err = verbs.ErrQueueFull
	}
	q.recv.posted += uint64(n)
	return n, err
}

// postRecvs posts receives to a QP or an SRQ by its operation. The caller holds the lock.
func (r *queue) postRecvs(function string, op, address uintptr, wrs []verbs.RecvWR) (n int, err error) {
	for n < len(wrs) && err == nil {
		var k int
		k, err = r.postSome(function, op, address, wrs[n:])
		n += k
	}
	return n, err
}

// postSome posts what there is room for in the arena.
func (r *queue) postSome(function string, op, address uintptr, wrs []verbs.RecvWR) (int, error) {
	room := &r.room
	room.used = 0
	bad := in[uintptr](room)
	*bad = 0
	first := room.used
	var last *ibvRecvWR
	laid := 0
	for i := range wrs {
		if room.left() < recvBytes(len(wrs[i].SGL)) {
			break
		}
		to := in[ibvRecvWR](room)
		*to = ibvRecvWR{wrID: wrs[i].ID}
		to.sgList, to.numSGE = layList(room, wrs[i].SGL)
		if last != nil {
			last.next = uintptr(unsafe.Pointer(to))
		}
		last = to
		laid++
	}
	if laid == 0 { // more memory than the queue was made for
		return 0, fmt.Errorf("%w: the receive is longer than those of the queue", verbs.ErrInvalid)
	}
	head := uintptr(unsafe.Pointer(&room.mem[first]))
	post := call{fn: op, args: [6]uintptr{address, head, uintptr(unsafe.Pointer(bad))}}
	post.do()
	n := int32(post.result)
	if n == 0 {
		return laid, nil
	}
	taken := 0
	for at := head; at != *bad && at != 0; at = view[ibvRecvWR](at).next {
		taken++
	}
	return min(taken, laid), refused(function, n)
}
