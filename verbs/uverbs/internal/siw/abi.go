package siw

import (
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// The structures of rdma/siw-abi.h; the comment of each names the C
// structure. Sizes and offsets are checked in abi_test.go.

// contextOut is struct siw_uresp_alloc_ctx.
type contextOut struct {
	_ uint32 // device id
	_ uint32
}

// regMRIn is struct siw_ureq_reg_mr. The key becomes the low byte of the
// region's keys.
type regMRIn struct {
	stagKey uint8
	_       [3]uint8
	_       uint32
}

// regMROut is struct siw_uresp_reg_mr.
type regMROut struct {
	_ uint32 // the key, which REG_MR answers too
	_ uint32
}

// createCQOut is struct siw_uresp_create_cq. The keys of this and of the
// following structures are what to map.
type createCQOut struct {
	_      uint32 // its number
	numCQE uint32
	cqKey  uint64
}

// createQPOut is struct siw_uresp_create_qp. Without a receive queue its
// key is 0, which may be that of another queue.
type createQPOut struct {
	_      uint32 // its number, which CREATE_QP answers too
	numSQE uint32
	numRQE uint32
	_      uint32
	sqKey  uint64
	rqKey  uint64
}

// createSRQOut is struct siw_uresp_create_srq.
type createSRQOut struct {
	numRQE uint32
	_      uint32
	srqKey uint64
}

// sge is struct siw_sge.
type sge struct {
	addr   uint64
	length uint32
	lkey   uint32
}

const (
	maxSGE = 6 // SIW_MAX_SGE
	// maxInline is SIW_MAX_INLINE: inline data takes the place of all SGEs
	// but the first, which has the length.
	maxInline = (maxSGE - 1) * 16
)

// sqEntry is struct siw_sqe. word is u16 flags, u8 number of SGEs and u8
// opcode, which packWord packs.
type sqEntry struct {
	id    uint64
	word  uint32
	rkey  uint32
	raddr uint64
	sge   [maxSGE]sge
}

// rqEntry is struct siw_rqe.
type rqEntry struct {
	id   uint64
	word uint32
	_    uint32
	sge  [maxSGE]sge
}

// cqEntry is struct siw_cqe. word is u8 flags, u8 opcode and u16 status, which
// unpackCQE takes apart.
type cqEntry struct {
	id        uint64
	_         uint32 // word
	bytes     uint32
	invalStag uint64
	qpID      uint64
}

// Where the id and the word are in each of the three.
const (
	offsetID   = 0
	offsetWord = 8
)

// cqControl is struct siw_cq_ctrl, which stands behind the last completion.
type cqControl struct {
	_ uint32 // flags
	_ uint32
}

// The flags of requests and completions, enum siw_wqe_flags.
const (
	flagValid     = 1 << 0
	flagInline    = 1 << 1
	flagSignaled  = 1 << 2
	flagSolicited = 1 << 3
	flagReadFence = 1 << 4
	flagRemInval  = 1 << 5
)

// The operations, enum siw_opcode.
const (
	opWrite         = 0
	opRead          = 1
	opReadLocalInv  = 2
	opSend          = 3
	opSendRemoteInv = 5
	opReceive       = 8
)

// The words that arm a completion queue, enum siw_notify_flags.
const (
	notifyNot       = 0
	notifySolicited = 1 << 0
	notifyNext      = 1 << 1
)

// packWord packs the word of a request.
func packWord(flags uint16, numSGE, opcode uint8) uint32 {
	if abi.LittleEndian {
		return uint32(flags) | uint32(numSGE)<<16 | uint32(opcode)<<24
	}
	return uint32(flags)<<16 | uint32(numSGE)<<8 | uint32(opcode)
}

// isValid reports whether the word of a request belongs to one that the
// kernel has not taken yet.
func isValid(word uint32) bool {
	return word&packWord(flagValid, 0, 0) != 0
}

// unpackCQE takes the word of a completion apart.
func unpackCQE(word uint32) (flags, opcode uint8, status uint16) {
	if abi.LittleEndian {
		return uint8(word), uint8(word >> 8), uint16(word >> 16)
	}
	return uint8(word >> 24), uint8(word >> 16), uint16(word)
}
