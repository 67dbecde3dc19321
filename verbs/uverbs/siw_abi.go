package uverbs

// The structures of rdma/siw-abi.h; the comment of each names the C
// structure. Sizes and offsets are checked in siw_abi_test.go.

// siwContextOut is struct siw_uresp_alloc_ctx.
type siwContextOut struct {
	_ uint32 // device id
	_ uint32
}

// siwRegMRIn is struct siw_ureq_reg_mr. The key becomes the low byte of the
// region's keys.
type siwRegMRIn struct {
	stagKey uint8
	_       [3]uint8
	_       uint32
}

// siwRegMROut is struct siw_uresp_reg_mr.
type siwRegMROut struct {
	_ uint32 // the key, which REG_MR answers too
	_ uint32
}

// siwCreateCQOut is struct siw_uresp_create_cq. The keys of this and of the
// following structures are what to map.
type siwCreateCQOut struct {
	_      uint32 // its number
	numCQE uint32
	cqKey  uint64
}

// siwCreateQPOut is struct siw_uresp_create_qp. Without a receive queue its
// key is 0, which may be that of another queue.
type siwCreateQPOut struct {
	_      uint32 // its number, which CREATE_QP answers too
	numSQE uint32
	numRQE uint32
	_      uint32
	sqKey  uint64
	rqKey  uint64
}

// siwCreateSRQOut is struct siw_uresp_create_srq.
type siwCreateSRQOut struct {
	numRQE uint32
	_      uint32
	srqKey uint64
}

// siwSGE is struct siw_sge.
type siwSGE struct {
	addr   uint64
	length uint32
	lkey   uint32
}

const (
	siwMaxSGE = 6 // SIW_MAX_SGE
	// siwMaxInline is SIW_MAX_INLINE: inline data takes the place of all SGEs
	// but the first, which has the length.
	siwMaxInline = (siwMaxSGE - 1) * 16
)

// siwSQE is struct siw_sqe. word is u16 flags, u8 number of SGEs and u8
// opcode, which siwWord packs.
type siwSQE struct {
	id    uint64
	word  uint32
	rkey  uint32
	raddr uint64
	sge   [siwMaxSGE]siwSGE
}

// siwRQE is struct siw_rqe.
type siwRQE struct {
	id   uint64
	word uint32
	_    uint32
	sge  [siwMaxSGE]siwSGE
}

// siwCQE is struct siw_cqe. word is u8 flags, u8 opcode and u16 status, which
// siwUnpackCQE takes apart.
type siwCQE struct {
	id        uint64
	_         uint32 // word
	bytes     uint32
	invalStag uint64
	qpID      uint64
}

// Where the id and the word are in each of the three.
const (
	siwOffsetID   = 0
	siwOffsetWord = 8
)

// siwCQControl is struct siw_cq_ctrl, which stands behind the last completion.
type siwCQControl struct {
	_ uint32 // flags
	_ uint32
}

// The flags of requests and completions, enum siw_wqe_flags.
const (
	siwValid     = 1 << 0
	siwInline    = 1 << 1
	siwSignaled  = 1 << 2
	siwSolicited = 1 << 3
	siwReadFence = 1 << 4
	siwRemInval  = 1 << 5
)

// The operations, enum siw_opcode.
const (
	siwOpWrite         = 0
	siwOpRead          = 1
	siwOpReadLocalInv  = 2
	siwOpSend          = 3
	siwOpSendRemoteInv = 5
	siwOpReceive       = 8
)

// The words that arm a completion queue, enum siw_notify_flags.
const (
	siwNotifyNot       = 0
	siwNotifySolicited = 1 << 0
	siwNotifyNext      = 1 << 1
)

// siwWord packs the word of a request.
func siwWord(flags uint16, numSGE, opcode uint8) uint32 {
	if littleEndian {
		return uint32(flags) | uint32(numSGE)<<16 | uint32(opcode)<<24
	}
	return uint32(flags)<<16 | uint32(numSGE)<<8 | uint32(opcode)
}

// siwIsValid reports whether the word of a request belongs to one that the
// kernel has not taken yet.
func siwIsValid(word uint32) bool {
	return word&siwWord(siwValid, 0, 0) != 0
}

// siwUnpackCQE takes the word of a completion apart.
func siwUnpackCQE(word uint32) (flags, opcode uint8, status uint16) {
	if littleEndian {
		return uint8(word), uint8(word >> 8), uint16(word >> 16)
	}
	return uint8(word >> 24), uint8(word >> 16), uint16(word)
}
