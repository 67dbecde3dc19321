package rxe

// The structures of rdma/rdma_user_rxe.h; the comment of each names the C
// structure. Sizes and offsets are checked in abi_test.go.

// mapping is struct mminfo: what to map.
type mapping struct {
	offset uint64
	size   uint32
	_      uint32 // reserved
}

// createQPOut is struct rxe_create_qp_resp. The receive queue is empty if
// the QP has an SRQ.
type createQPOut struct {
	recv mapping
	send mapping
}

// createSRQOut is struct rxe_create_srq_resp.
type createSRQOut struct {
	queue mapping
	_     uint32 // srqNum
	_     uint32 // reserved
}

// modifySRQIn is struct rxe_modify_srq_cmd.
type modifySRQIn struct {
	answer uint64 // where the kernel writes the mapping of the new queue
}

// createAHOut is struct rxe_create_ah_resp.
type createAHOut struct {
	ahNum uint32
	_     uint32 // reserved
}

// The header of a queue in mapped memory, struct rxe_queue_buf: four words,
// three of them in cache lines of their own, and the elements behind.
const (
	offsetLogElement = 0
	offsetMask       = 4
	offsetProducer   = 128
	offsetConsumer   = 256
	offsetElements   = 384
)

// sge is struct rxe_sge.
type sge struct {
	addr   uint64
	length uint32
	lkey   uint32
}

// dma is struct rxe_dma_info without the SGEs, or the inline data, behind
// it.
type dma struct {
	length uint32
	resid  uint32
	_      uint32 // curSGE
	numSGE uint32
	_      uint32 // sgeOffset
	_      uint32 // reserved
}

// sendWQE is struct rxe_send_wqe. op is the union of the structures that
// follow, each of which says what the operation needs.
type sendWQE struct {
	wrID      uint64
	_         uint32 // reserved
	opcode    uint32
	sendFlags uint32
	ex        uint32             // immediate in network byte order, or the rkey to invalidate
	_         [opSize / 8]uint64 // op

	_    uint32 // status
	_    uint32 // state
	iova uint64
	_    uint32 // mask
	_    uint32 // firstPSN
	_    uint32 // lastPSN
	_    uint32 // ackLength
	_    uint32 // ssn
	_    uint32 // hasRdAtomic
	dma  dma
}

// opSize is the size of the union wr of struct rxe_send_wr, and
// offsetOp where it is.
const (
	opSize   = 120
	offsetOp = 24
)

// rdmaOp is the rdma part of the union.
type rdmaOp struct {
	remoteAddr uint64
	rkey       uint32
	_          uint32 // reserved
}

// atomicOp is the atomic part.
type atomicOp struct {
	remoteAddr uint64
	compareAdd uint64
	swap       uint64
	rkey       uint32
	_          uint32 // reserved
}

// udOp is the ud part without the address vector, which kernels since 5.15
// look up by number.
type udOp struct {
	remoteQPN  uint32
	remoteQKey uint32
	_          uint16 // pkeyIndex
	_          uint16 // reserved
	ahNum      uint32
}

// bindOp is the mw part.
type bindOp struct {
	addr   uint64
	length uint64
	mrLKey uint32
	mwRKey uint32
	rkey   uint32
	access uint32
}

// flushOp is the flush part (kernel 6.3).
type flushOp struct {
	remoteAddr uint64
	_          uint32 // length
	rkey       uint32
	typ        uint8
	level      uint8
	_          [6]uint8 // reserved
}

// recvWQE is struct rxe_recv_wqe.
type recvWQE struct {
	wrID uint64
	_    uint32 // reserved
	_    uint32 // padding
	dma  dma
}
