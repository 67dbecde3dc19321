package uverbs

// The structures of rdma/rdma_user_rxe.h; the comment of each names the C
// structure. Sizes and offsets are checked in rxe_abi_test.go.

// rxeMapping is struct mminfo: what to map.
type rxeMapping struct {
	offset uint64
	size   uint32
	_      uint32 // reserved
}

// rxeCreateQPOut is struct rxe_create_qp_resp. The receive queue is empty if
// the QP has an SRQ.
type rxeCreateQPOut struct {
	recv rxeMapping
	send rxeMapping
}

// rxeCreateSRQOut is struct rxe_create_srq_resp.
type rxeCreateSRQOut struct {
	queue rxeMapping
	_     uint32 // srqNum
	_     uint32 // reserved
}

// rxeModifySRQIn is struct rxe_modify_srq_cmd.
type rxeModifySRQIn struct {
	answer uint64 // where the kernel writes the rxeMapping of the new queue
}

// rxeCreateAHOut is struct rxe_create_ah_resp.
type rxeCreateAHOut struct {
	ahNum uint32
	_     uint32 // reserved
}

// The header of a queue in mapped memory, struct rxe_queue_buf: four words,
// three of them in cache lines of their own, and the elements behind.
const (
	rxeOffsetLogElement = 0
	rxeOffsetMask       = 4
	rxeOffsetProducer   = 128
	rxeOffsetConsumer   = 256
	rxeOffsetElements   = 384
)

// rxeSGE is struct rxe_sge.
type rxeSGE struct {
	addr   uint64
	length uint32
	lkey   uint32
}

// rxeDMA is struct rxe_dma_info without the SGEs, or the inline data, behind
// it.
type rxeDMA struct {
	length uint32
	resid  uint32
	_      uint32 // curSGE
	numSGE uint32
	_      uint32 // sgeOffset
	_      uint32 // reserved
}

// rxeSendWQE is struct rxe_send_wqe. op is the union of the structures that
// follow, each of which says what the operation needs.
type rxeSendWQE struct {
	wrID      uint64
	_         uint32 // reserved
	opcode    uint32
	sendFlags uint32
	ex        uint32                // immediate in network byte order, or the rkey to invalidate
	_         [rxeOpSize / 8]uint64 // op

	_    uint32 // status
	_    uint32 // state
	iova uint64
	_    uint32 // mask
	_    uint32 // firstPSN
	_    uint32 // lastPSN
	_    uint32 // ackLength
	_    uint32 // ssn
	_    uint32 // hasRdAtomic
	dma  rxeDMA
}

// rxeOpSize is the size of the union wr of struct rxe_send_wr, and
// rxeOffsetOp where it is.
const (
	rxeOpSize   = 120
	rxeOffsetOp = 24
)

// rxeRDMA is the rdma part of the union.
type rxeRDMA struct {
	remoteAddr uint64
	rkey       uint32
	_          uint32 // reserved
}

// rxeAtomic is the atomic part.
type rxeAtomic struct {
	remoteAddr uint64
	compareAdd uint64
	swap       uint64
	rkey       uint32
	_          uint32 // reserved
}

// rxeUD is the ud part without the address vector, which kernels since 5.15
// look up by number.
type rxeUD struct {
	remoteQPN  uint32
	remoteQKey uint32
	_          uint16 // pkeyIndex
	_          uint16 // reserved
	ahNum      uint32
}

// rxeMW is the mw part.
type rxeMW struct {
	addr   uint64
	length uint64
	mrLKey uint32
	mwRKey uint32
	rkey   uint32
	access uint32
}

// rxeFlush is the flush part (kernel 6.3).
type rxeFlush struct {
	remoteAddr uint64
	_          uint32 // length
	rkey       uint32
	typ        uint8
	level      uint8
	_          [6]uint8 // reserved
}

// rxeRecvWQE is struct rxe_recv_wqe.
type rxeRecvWQE struct {
	wrID uint64
	_    uint32 // reserved
	_    uint32 // padding
	dma  rxeDMA
}
