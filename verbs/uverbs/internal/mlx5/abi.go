//go:build amd64 || arm64

package mlx5

// The structures of rdma/mlx5-abi.h, in our byte order; the comment of each
// names the C structure. Sizes and offsets are checked in abi_test.go.

// contextIn is struct mlx5_ib_alloc_ucontext_req_v2.
type contextIn struct {
	totalNumBfregs      uint32
	numLowLatencyBfregs uint32
	_                   uint32 // flags
	_                   uint32 // comp_mask
	maxCQEVersion       uint8
	_                   uint8  // reserved0
	_                   uint16 // reserved1
	_                   uint32 // reserved2
	libCaps             uint64
}

const capPages4K = 1 // MLX5_LIB_CAP_4K_UAR

// contextOut is struct mlx5_ib_alloc_ucontext_resp.
type contextOut struct {
	_                 uint32 // qp_tab_size
	bfRegSize         uint32
	totBfregs         uint32
	_                 uint32 // cache_line_size
	maxSendWQE        uint16 // max_sq_desc_sz, bytes
	maxRecvWQE        uint16 // max_rq_desc_sz, bytes
	maxSendBlocks     uint32 // max_send_wqebb
	maxRecvWR         uint32
	_                 uint32 // max_srq_recv_wr
	_                 uint16 // num_ports
	_                 uint16 // flow_action_flags
	compMask          uint32
	_                 uint32 // response_length
	cqeVersion        uint8
	_                 uint8 // cmds_supp_uhw
	_                 uint8 // eth_min_inline
	clockInfoVersions uint8
	coreClockOffset   uint64 // hca_core_clock_offset, in a page
	logUARSize        uint32
	uarsPerPage       uint32 // num_uars_per_page
	_                 uint32 // num_dyn_bfregs
	dumpFillMKey      uint32
}

// What of contextOut there is (enum mlx5_ib_alloc_ucontext_resp_mask).
const (
	hasCoreClock    = 1 << 0 // MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET
	hasDumpFillMKey = 1 << 1 // MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY
)

// Commands of mmap, from bit 8 of the page's number on
// (enum mlx5_ib_mmap_cmd).
const (
	mmapRegular   = 0 // combines stores where the processor can
	mmapNonCached = 3
	mmapCoreClock = 5
	mmapClockInfo = 7 // of the version that is its index, 0
	mmapMemory    = 8 // of the device
)

// Attributes that DM_ALLOC has of the driver (rdma/mlx5_user_ioctl_cmds.h, enum
// mlx5_ib_alloc_dm_attrs). Without MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, which the first kernels with
// device memory do not know, it is of the type that programs map.
const (
	attrMemoryOffset = 0x1000 // MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, of eight bytes
	attrMemoryPage   = 0x1001 // MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, of two
)

const clockInfoV1 = 1 // 1 << MLX5_IB_CLOCK_INFO_V1

// allocPDOut is struct mlx5_ib_alloc_pd_resp.
type allocPDOut struct {
	_ uint32 // pdn
}

// createCQIn is struct mlx5_ib_create_cq.
type createCQIn struct {
	buffer  uint64
	record  uint64
	cqeSize uint32
	_       uint8  // cqe_comp_en
	_       uint8  // cqe_comp_res_format
	_       uint16 // flags
	_       uint16 // uar_page_index
	_       uint16 // reserved0
	_       uint32 // reserved1
}

// createCQOut is struct mlx5_ib_create_cq_resp.
type createCQOut struct {
	cqn uint32
	_   uint32
}

// resizeCQIn is struct mlx5_ib_resize_cq.
type resizeCQIn struct {
	buffer  uint64
	cqeSize uint16
	_       uint16 // reserved0
	_       uint32 // reserved1
}

// createQPIn is struct mlx5_ib_create_qp.
type createQPIn struct {
	buffer    uint64
	record    uint64
	sendSize  uint32 // sq_wqe_count, basic blocks
	recvSize  uint32 // rq_wqe_count
	recvShift uint32 // rq_wqe_shift
	_         uint32 // flags
	index     uint32 // uidx, by which completions could name the QP
	_         uint32 // bfreg_index
	_         uint64 // sq_buf_addr
}

// defaultIndex is the uidx of QPs whose completions have none (MLX5_IB_DEFAULT_UIDX): the kernel
// wants it of devices with completions of version 0, and refuses it of others.
const defaultIndex = 0xffffff

// createQPOut is struct mlx5_ib_create_qp_resp, of which kernels before 5.8 have
// the first two words alone.
type createQPOut struct {
	bfregIndex uint32
	_          uint32 // ece_options
	_          uint32 // comp_mask
	_          uint32 // tirn
	_          uint32 // tisn
	_          uint32 // rqn
	_          uint32 // sqn
	_          uint32 // reserved1
	_          uint64 // tir_icm_addr
}

// createSRQIn is struct mlx5_ib_create_srq.
type createSRQIn struct {
	buffer uint64
	record uint64
	_      uint32 // flags
	_      uint32 // reserved0
	index  uint32 // uidx, by which completions name an SRQ of an XRC domain
	_      uint32 // reserved1
}

// createSRQOut is struct mlx5_ib_create_srq_resp.
type createSRQOut struct {
	_ uint32 // srqn
	_ uint32
}

// createAHOut is struct mlx5_ib_create_ah_resp.
type createAHOut struct {
	responseLength uint32
	dmac           [6]uint8
	_              [6]uint8
}

// Opcodes of WQEs (MLX5_OPCODE_*).
const (
	opSendInv  = 0x01
	opWrite    = 0x08
	opWriteImm = 0x09
	opSend     = 0x0a
	opSendImm  = 0x0b
	opRead     = 0x10
	opCompare  = 0x11
	opFetchAdd = 0x12
	opUMR      = 0x25 // changes a key
)

// Sizes in a queue of WQEs (struct mlx5_wqe_ctrl_seg and those behind it).
const (
	blockSize     = 64 // MLX5_SEND_WQE_BB
	blockShift    = 6
	segmentSize   = 16 // of all segments but the next
	datagramSize  = 48 // struct mlx5_wqe_datagram_seg
	inlineFlag    = 1 << 31
	invalidKey    = 0x100 // MLX5_INVALID_LKEY, ends the list of a receive
	ctrlFlags     = 11    // offset of fm_ce_se
	ctrlImm       = 12    // offset of imm
	flagSignaled  = 8     // MLX5_WQE_CTRL_CQ_UPDATE
	flagSolicited = 2     // MLX5_WQE_CTRL_SOLICITED
	flagFence     = 4 << 5
	flagAfterUMR  = 1 << 5 // MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE
)

// A CQE, struct mlx5_cqe64.
const (
	cqeSize      = 64
	cqePathBits  = 17 // ml_path, the lower seven bits
	cqeSLID      = 22 // be16
	cqeFlagsRQPN = 24 // be32: flags << 28 | sl << 24 | source QP
	cqeIndex     = 32 // be32, 24 bits: the uidx, of version 0 the number of the SRQ
	cqeImm       = 36 // be32: immediate, or the invalidated key
	cqeBytes     = 44 // be32
	cqeTimestamp = 48 // be64, not of those with an error
	cqeVendor    = 54
	cqeSyndrome  = 55
	cqeOpQPN     = 56 // be32: the WQE's opcode << 24 | QP
	cqeLast      = 60 // be16 wqe_counter, u8 signature, u8 op_own
)

// What a CQE is about, the upper half of op_own (MLX5_CQE_*).
const (
	cqeRequest       = 0
	cqeWriteImm      = 1
	cqeRecv          = 2
	cqeRecvImm       = 3
	cqeRecvInv       = 4
	cqeResize        = 5
	cqeRequestError  = 13
	cqeResponseError = 14
	cqeInvalid       = 15
)
