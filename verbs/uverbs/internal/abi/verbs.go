package abi

// The structures of rdma/ib_user_verbs.h that the provider uses, in the order
// of the header; the comment of each names the C structure. Commands begin with
// the address of their answer, which File sets where the kernel wants it. Sizes
// and offsets are checked in verbs_test.go against those that a C compiler makes.

// AsyncEventDesc is struct ib_uverbs_async_event_desc.
type AsyncEventDesc struct {
	Element   uint64 // user handle of a QP, CQ or SRQ, or a port number
	EventType uint32
	_         uint32 // reserved
}

// CompEventDesc is struct ib_uverbs_comp_event_desc.
type CompEventDesc struct {
	CQHandle uint64 // user handle of the CQ
}

// CommandHeader is struct ib_uverbs_cmd_hdr. The lengths count words of four
// bytes, the header included.
type CommandHeader struct {
	Command  uint32
	InWords  uint16
	OutWords uint16
}

// extendedHeader is struct ib_uverbs_ex_cmd_hdr. Its lengths count words of
// eight bytes, as do those of the CommandHeader before it, which then leave
// out both headers and the driver's part.
type extendedHeader struct {
	Response       uint64
	DriverInWords  uint16
	DriverOutWords uint16
	_              uint32 // commandReserved
}

// ResponseOnly is every command that has nothing but an answer: struct
// ib_uverbs_get_context, ib_uverbs_query_device, ib_uverbs_alloc_pd and
// ib_uverbs_create_comp_channel.
type ResponseOnly struct {
	_ uint64 // response
}

// GetContextOut is struct ib_uverbs_get_context_resp.
type GetContextOut struct {
	AsyncFD        uint32
	NumCompVectors uint32
}

// QueryDeviceOut is struct ib_uverbs_query_device_resp. The GUIDs are in
// network byte order.
type QueryDeviceOut struct {
	FwVer           uint64
	NodeGUID        [8]byte
	SysImageGUID    [8]byte
	MaxMRSize       uint64
	_               uint64 // pageSizeCap
	VendorID        uint32
	VendorPartID    uint32
	HwVer           uint32
	MaxQP           uint32
	MaxQPWR         uint32
	DeviceCapFlags  uint32
	MaxSGE          uint32
	MaxSGERead      uint32
	MaxCQ           uint32
	MaxCQE          uint32
	MaxMR           uint32
	MaxPD           uint32
	MaxQPRdAtom     uint32
	_               uint32 // maxEERdAtom
	_               uint32 // maxResRdAtom
	MaxQPInitRdAtom uint32
	_               uint32 // maxEEInitRdAtom
	AtomicCap       uint32 // 0: there are no atomics (enum ib_atomic_cap)
	_               uint32 // maxEE
	_               uint32 // maxRDD
	MaxMW           uint32
	_               uint32 // maxRawIPv6QP
	_               uint32 // maxRawEthyQP
	MaxMcastGrp     uint32
	_               uint32 // maxMcastQPAttach
	_               uint32 // maxTotalMcastQPAttach
	MaxAH           uint32
	_               uint32 // maxFMR
	_               uint32 // maxMapPerFMR
	MaxSRQ          uint32
	MaxSRQWR        uint32
	MaxSRQSGE       uint32
	_               uint16 // maxPKeys
	LocalCAAckDelay uint8
	PhysPortCnt     uint8
	_               [4]uint8 // reserved
}

// The bits of device_cap_flags, and from bit 32 on of device_cap_flags_ex,
// that say which optional operations there are (enum ib_device_cap_flags,
// rdma/ib_user_verbs.h).
const (
	KernelCapMemWindow   = 1 << 17
	KernelCapXRC         = 1 << 20
	KernelCapWindow2A    = 1 << 23
	KernelCapWindow2B    = 1 << 24
	KernelCapFlushGlobal = 1 << 38
	KernelCapFlushPersis = 1 << 39
	KernelCapAtomicWrite = 1 << 40
)

// ExQueryDeviceIn is struct ib_uverbs_ex_query_device.
type ExQueryDeviceIn struct {
	_ uint32 // compMask
	_ uint32 // reserved
}

// odpCaps is struct ib_uverbs_odp_caps.
type odpCaps struct {
	General    uint64
	RC, UC, UD uint32
	_          uint32 // reserved
}

// ExQueryDeviceOut is struct ib_uverbs_ex_query_device_resp.
type ExQueryDeviceOut struct {
	Base             QueryDeviceOut
	_                uint32 // compMask
	_                uint32 // responseLength: bytes that this kernel filled in
	ODP              odpCaps
	TimestampMask    uint64
	HCACoreClock     uint64 // kHz
	DeviceCapFlagsEx uint64
	_                [4]uint32 // rssCaps
	_                uint32    // maxWQTypeRQ
	_                uint32    // rawPacketCaps
	_                [6]uint32 // tmCaps
	MaxModCount      uint16    // cqModerationCaps
	MaxModPeriod     uint16
	_                uint32
	MaxDMSize        uint64
	XRCODP           uint32 // xrc_odp_caps: of the same bits as ODP.RC
	_                uint32 // reserved
}

// QueryPortIn is struct ib_uverbs_query_port.
type QueryPortIn struct {
	_       uint64 // response
	PortNum uint8
	_       [7]uint8 // reserved
}

// QueryPortOut is struct ib_uverbs_query_port_resp.
type QueryPortOut struct {
	_           uint32 // portCapFlags
	MaxMsgSize  uint32
	_           uint32 // badPKeyCntr
	_           uint32 // qkeyViolCntr
	GIDTblLen   uint32
	PKeyTblLen  uint16
	LID         uint16
	SMLID       uint16
	State       uint8
	MaxMTU      uint8
	ActiveMTU   uint8
	LMC         uint8
	_           uint8 // maxVLNum
	_           uint8 // smSL
	_           uint8 // subnetTimeout
	_           uint8 // initTypeReply
	ActiveWidth uint8
	ActiveSpeed uint8
	PhysState   uint8
	LinkLayer   uint8
	_           uint8 // flags
	_           uint8 // reserved
}

// AllocPDOut is struct ib_uverbs_alloc_pd_resp.
type AllocPDOut struct {
	Handle uint32
}

// HandleOnly is every command that destroys by a handle and has no answer:
// struct ib_uverbs_dealloc_pd, ib_uverbs_dereg_mr, ib_uverbs_dealloc_mw,
// ib_uverbs_destroy_ah and ib_uverbs_close_xrcd.
type HandleOnly struct {
	Handle uint32
}

// DestroyIn is every command that destroys by a handle and has an answer:
// struct ib_uverbs_destroy_cq, ib_uverbs_destroy_qp and ib_uverbs_destroy_srq.
type DestroyIn struct {
	_      uint64 // response
	Handle uint32
	_      uint32 // reserved
}

// RegMRIn is struct ib_uverbs_reg_mr.
type RegMRIn struct {
	Response    uint64
	Start       uint64
	Length      uint64
	HCAVA       uint64
	PDHandle    uint32
	AccessFlags uint32
}

// RegMROut is struct ib_uverbs_reg_mr_resp.
type RegMROut struct {
	Handle uint32
	LKey   uint32
	RKey   uint32
}

// ReregMRIn is struct ib_uverbs_rereg_mr.
type ReregMRIn struct {
	_           uint64 // response
	Handle      uint32
	Flags       uint32
	Start       uint64
	Length      uint64
	HCAVA       uint64
	PDHandle    uint32
	AccessFlags uint32
}

// ReregMROut is struct ib_uverbs_rereg_mr_resp.
type ReregMROut struct {
	LKey uint32
	RKey uint32
}

// AllocMWIn is struct ib_uverbs_alloc_mw.
type AllocMWIn struct {
	_        uint64 // response
	PDHandle uint32
	MWType   uint8
	_        [3]uint8 // reserved
}

// AllocMWOut is struct ib_uverbs_alloc_mw_resp.
type AllocMWOut struct {
	Handle uint32
	RKey   uint32
}

// CreateCompChannelOut is struct ib_uverbs_create_comp_channel_resp.
type CreateCompChannelOut struct {
	FD uint32
}

// CreateCQIn is struct ib_uverbs_create_cq.
type CreateCQIn struct {
	_           uint64 // response
	UserHandle  uint64
	CQE         uint32
	CompVector  uint32
	CompChannel int32  // -1: none
	_           uint32 // reserved
}

// CreateCQOut is struct ib_uverbs_create_cq_resp.
type CreateCQOut struct {
	Handle uint32
	CQE    uint32
}

// ResizeCQIn is struct ib_uverbs_resize_cq.
type ResizeCQIn struct {
	_      uint64 // response
	Handle uint32
	CQE    uint32
}

// ResizeCQOut is struct ib_uverbs_resize_cq_resp.
type ResizeCQOut struct {
	CQE uint32
	_   uint32 // reserved
}

// ModifyCQIn is struct ib_uverbs_ex_modify_cq, without an answer.
type ModifyCQIn struct {
	Handle   uint32
	AttrMask uint32
	Count    uint16
	Period   uint16 // microseconds
	_        uint32 // reserved
}

// CQModerate is IB_CQ_MODERATE of the kernel's rdma/ib_verbs.h.
const CQModerate = 1

// WC is struct ib_uverbs_wc. rxe writes it into its queues.
type WC struct {
	WRID      uint64
	Status    uint32
	Opcode    uint32
	VendorErr uint32
	ByteLen   uint32
	Ex        uint32 // immediate in network byte order, or an rkey in ours
	QPNum     uint32
	SrcQP     uint32
	WCFlags   uint32
	_         uint16 // pkeyIndex
	SLID      uint16
	SL        uint8
	PathBits  uint8 // dlidPathBits
	_         uint8 // portNum
	_         uint8 // reserved
}

// ReqNotifyCQIn is struct ib_uverbs_req_notify_cq.
type ReqNotifyCQIn struct {
	Handle        uint32
	SolicitedOnly uint32
}

// DestroyCQOut is struct ib_uverbs_destroy_cq_resp.
type DestroyCQOut struct {
	_ uint32 // compEventsReported
	_ uint32 // asyncEventsReported
}

// GlobalRoute is struct ib_uverbs_global_route.
type GlobalRoute struct {
	DGID         [16]uint8
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	_            uint8 // reserved
}

// AHAttr is struct ib_uverbs_ah_attr.
type AHAttr struct {
	GRH         GlobalRoute
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  uint8
	IsGlobal    uint8
	PortNum     uint8
	_           uint8 // reserved
}

// CreateQPIn is struct ib_uverbs_create_qp.
type CreateQPIn struct {
	_          uint64 // response
	UserHandle uint64
	PDHandle   uint32
	SendCQ     uint32
	RecvCQ     uint32
	SRQHandle  uint32
	MaxSendWR  uint32
	MaxRecvWR  uint32
	MaxSendSGE uint32
	MaxRecvSGE uint32
	MaxInline  uint32
	SQSigAll   uint8
	QPType     uint8
	IsSRQ      uint8
	_          uint8 // reserved
}

// CreateQPOut is struct ib_uverbs_create_qp_resp.
type CreateQPOut struct {
	Handle     uint32
	QPN        uint32
	MaxSendWR  uint32
	MaxRecvWR  uint32
	MaxSendSGE uint32
	MaxRecvSGE uint32
	MaxInline  uint32
	_          uint32 // reserved
}

// QPDest is struct ib_uverbs_qp_dest.
type QPDest struct {
	DGID         [16]uint8
	FlowLabel    uint32
	DLID         uint16
	_            uint16 // reserved
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     uint8
	PortNum      uint8
}

// QueryQPIn is struct ib_uverbs_query_qp.
type QueryQPIn struct {
	_        uint64 // response
	Handle   uint32
	AttrMask uint32
}

// QueryQPOut is struct ib_uverbs_query_qp_resp.
type QueryQPOut struct {
	Dest            QPDest
	AltDest         QPDest
	MaxSendWR       uint32
	MaxRecvWR       uint32
	MaxSendSGE      uint32
	MaxRecvSGE      uint32
	MaxInline       uint32
	QKey            uint32
	RQPSN           uint32
	SQPSN           uint32
	DestQPNum       uint32
	AccessFlags     uint32
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	QPState         uint8
	CurQPState      uint8
	PathMTU         uint8
	PathMigState    uint8
	SQDraining      uint8
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	MinRNRTimer     uint8
	PortNum         uint8
	Timeout         uint8
	RetryCnt        uint8
	RnrRetry        uint8
	AltPortNum      uint8
	AltTimeout      uint8
	_               uint8    // sqSigAll
	_               [5]uint8 // reserved
}

// ModifyQPIn is struct ib_uverbs_modify_qp.
type ModifyQPIn struct {
	Dest             QPDest
	AltDest          QPDest
	Handle           uint32
	AttrMask         uint32
	QKey             uint32
	RQPSN            uint32
	SQPSN            uint32
	DestQPNum        uint32
	AccessFlags      uint32
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	QPState          uint8
	CurQPState       uint8
	PathMTU          uint8
	PathMigState     uint8
	EnSQDAsyncNotify uint8
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8
	RetryCnt         uint8
	RnrRetry         uint8
	AltPortNum       uint8
	AltTimeout       uint8
	_                [2]uint8 // reserved
}

// DestroyQPOut is struct ib_uverbs_destroy_qp_resp, and struct
// ib_uverbs_destroy_srq_resp.
type DestroyQPOut struct {
	_ uint32 // eventsReported
}

// PostSendIn is struct ib_uverbs_post_send. Without requests behind it, it
// is the doorbell of a queue in mapped memory.
type PostSendIn struct {
	Response uint64
	Handle   uint32
	_        uint32 // wrCount
	_        uint32 // sgeCount
	WQESize  uint32 // at least sizeof(struct ib_uverbs_send_wr)
}

// postSendOut is struct ib_uverbs_post_send_resp.
type postSendOut struct {
	_ uint32 // badWR
}

// SendWRSize is sizeof(struct ib_uverbs_send_wr).
const SendWRSize = 56

// CreateAHIn is struct ib_uverbs_create_ah.
type CreateAHIn struct {
	_        uint64 // response
	_        uint64 // userHandle
	PDHandle uint32
	_        uint32 // reserved
	Attr     AHAttr
}

// CreateAHOut is struct ib_uverbs_create_ah_resp.
type CreateAHOut struct {
	Handle uint32
}

// MulticastIn is struct ib_uverbs_attach_mcast, and ib_uverbs_detach_mcast. Neither has an answer.
type MulticastIn struct {
	GID      [16]uint8
	QPHandle uint32
	MLID     uint16
	_        uint16 // reserved
}

// CreateSRQIn is struct ib_uverbs_create_srq.
type CreateSRQIn struct {
	_          uint64 // response
	UserHandle uint64
	PDHandle   uint32
	MaxWR      uint32
	MaxSGE     uint32
	Limit      uint32
}

// CreateSRQOut is struct ib_uverbs_create_srq_resp.
type CreateSRQOut struct {
	Handle uint32
	MaxWR  uint32
	MaxSGE uint32
	Num    uint32 // srqn, of an SRQ of an XRC domain
}

// OpenXRCDomainIn is struct ib_uverbs_open_xrcd.
type OpenXRCDomainIn struct {
	_     uint64 // response
	FD    int32  // -1: none
	Flags uint32 // those of open: O_CREAT, O_EXCL
}

// OpenXRCDomainOut is struct ib_uverbs_open_xrcd_resp.
type OpenXRCDomainOut struct {
	Handle uint32
}

// CreateXSRQIn is struct ib_uverbs_create_xsrq. It is answered with struct
// ib_uverbs_create_srq_resp.
type CreateXSRQIn struct {
	_            uint64 // response
	UserHandle   uint64
	Type         uint32
	PDHandle     uint32
	MaxWR        uint32
	MaxSGE       uint32
	Limit        uint32
	_            uint32 // maxNumTags
	DomainHandle uint32
	CQHandle     uint32
}

// SRQTypeXRC is IB_UVERBS_SRQT_XRC (rdma/ib_user_ioctl_verbs.h).
const SRQTypeXRC = 1

// OpenQPIn is struct ib_uverbs_open_qp. It is answered with struct ib_uverbs_create_qp_resp.
type OpenQPIn struct {
	_            uint64 // response
	UserHandle   uint64
	DomainHandle uint32 // pd_handle
	QPN          uint32
	QPType       uint8
	_            [7]uint8 // reserved
}

// ModifySRQIn is struct ib_uverbs_modify_srq.
type ModifySRQIn struct {
	Handle   uint32
	AttrMask uint32
	MaxWR    uint32
	Limit    uint32
}

// QuerySRQIn is struct ib_uverbs_query_srq.
type QuerySRQIn struct {
	_      uint64 // response
	Handle uint32
	_      uint32 // reserved
}

// QuerySRQOut is struct ib_uverbs_query_srq_resp.
type QuerySRQOut struct {
	_      uint32 // maxWR
	MaxSGE uint32
	Limit  uint32
	_      uint32 // reserved
}
