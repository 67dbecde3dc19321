package uverbs

// The structures of rdma/ib_user_verbs.h that the provider uses, in the order
// of the header; the comment of each names the C structure. Commands begin with the address of their answer, which the
// code that runs them sets where the kernel wants it (write). Sizes and
// offsets are checked in abi_test.go against those that a C compiler makes.

// asyncEventDesc is struct ib_uverbs_async_event_desc.
type asyncEventDesc struct {
	element   uint64 // user handle of a QP, CQ or SRQ, or a port number
	eventType uint32
	_         uint32 // reserved
}

// compEventDesc is struct ib_uverbs_comp_event_desc.
type compEventDesc struct {
	_ uint64 // cqHandle: user handle of the CQ
}

// commandHeader is struct ib_uverbs_cmd_hdr. The lengths count words of four
// bytes, the header included.
type commandHeader struct {
	command  uint32
	inWords  uint16
	outWords uint16
}

// extendedHeader is struct ib_uverbs_ex_cmd_hdr. Its lengths count words of
// eight bytes, as do those of the commandHeader before it, which then leave
// out both headers and the driver's part.
type extendedHeader struct {
	response       uint64
	driverInWords  uint16
	driverOutWords uint16
	_              uint32 // commandReserved
}

// responseOnly is every command that has nothing but an answer: struct
// ib_uverbs_get_context, ib_uverbs_query_device, ib_uverbs_alloc_pd and
// ib_uverbs_create_comp_channel.
type responseOnly struct {
	_ uint64 // response
}

// getContextOut is struct ib_uverbs_get_context_resp.
type getContextOut struct {
	asyncFD        uint32
	numCompVectors uint32
}

// queryDeviceOut is struct ib_uverbs_query_device_resp. The GUIDs are in
// network byte order.
type queryDeviceOut struct {
	fwVer           uint64
	nodeGUID        [8]byte
	sysImageGUID    [8]byte
	maxMRSize       uint64
	_               uint64 // pageSizeCap
	vendorID        uint32
	vendorPartID    uint32
	hwVer           uint32
	maxQP           uint32
	maxQPWR         uint32
	deviceCapFlags  uint32
	maxSGE          uint32
	maxSGERead      uint32
	maxCQ           uint32
	maxCQE          uint32
	maxMR           uint32
	maxPD           uint32
	maxQPRdAtom     uint32
	_               uint32 // maxEERdAtom
	_               uint32 // maxResRdAtom
	maxQPInitRdAtom uint32
	_               uint32 // maxEEInitRdAtom
	_               uint32 // atomicCap
	_               uint32 // maxEE
	_               uint32 // maxRDD
	maxMW           uint32
	_               uint32 // maxRawIPv6QP
	_               uint32 // maxRawEthyQP
	_               uint32 // maxMcastGrp
	_               uint32 // maxMcastQPAttach
	_               uint32 // maxTotalMcastQPAttach
	maxAH           uint32
	_               uint32 // maxFMR
	_               uint32 // maxMapPerFMR
	maxSRQ          uint32
	maxSRQWR        uint32
	maxSRQSGE       uint32
	_               uint16 // maxPKeys
	localCAAckDelay uint8
	physPortCnt     uint8
	_               [4]uint8 // reserved
}

// The bits of device_cap_flags, and from bit 32 on of device_cap_flags_ex,
// that say which optional operations there are (enum ib_device_cap_flags,
// rdma/ib_user_verbs.h).
const (
	kernelCapMemWindow   = 1 << 17
	kernelCapWindow2A    = 1 << 23
	kernelCapWindow2B    = 1 << 24
	kernelCapFlushGlobal = 1 << 38
	kernelCapFlushPersis = 1 << 39
	kernelCapAtomicWrite = 1 << 40
)

// exQueryDeviceIn is struct ib_uverbs_ex_query_device.
type exQueryDeviceIn struct {
	_ uint32 // compMask
	_ uint32 // reserved
}

// odpCaps is struct ib_uverbs_odp_caps.
type odpCaps struct {
	general    uint64
	rc, uc, ud uint32
	_          uint32 // reserved
}

// exQueryDeviceOut is struct ib_uverbs_ex_query_device_resp.
type exQueryDeviceOut struct {
	base             queryDeviceOut
	_                uint32 // compMask
	_                uint32 // responseLength: bytes that this kernel filled in
	odp              odpCaps
	_                uint64 // timestampMask
	_                uint64 // hcaCoreClock
	deviceCapFlagsEx uint64
	_                [4]uint32 // rssCaps
	_                uint32    // maxWQTypeRQ
	_                uint32    // rawPacketCaps
	_                [6]uint32 // tmCaps
	_                [2]uint32 // cqModerationCaps
	_                uint64    // maxDMSize
	_                uint32    // xrcODPCaps
	_                uint32    // reserved
}

// queryPortIn is struct ib_uverbs_query_port.
type queryPortIn struct {
	_       uint64 // response
	portNum uint8
	_       [7]uint8 // reserved
}

// queryPortOut is struct ib_uverbs_query_port_resp.
type queryPortOut struct {
	_           uint32 // portCapFlags
	maxMsgSize  uint32
	_           uint32 // badPKeyCntr
	_           uint32 // qkeyViolCntr
	gidTblLen   uint32
	pkeyTblLen  uint16
	lid         uint16
	smLID       uint16
	state       uint8
	maxMTU      uint8
	activeMTU   uint8
	lmc         uint8
	_           uint8 // maxVLNum
	_           uint8 // smSL
	_           uint8 // subnetTimeout
	_           uint8 // initTypeReply
	activeWidth uint8
	activeSpeed uint8
	physState   uint8
	linkLayer   uint8
	_           uint8 // flags
	_           uint8 // reserved
}

// allocPDOut is struct ib_uverbs_alloc_pd_resp.
type allocPDOut struct {
	handle uint32
}

// handleOnly is every command that destroys by a handle and has no answer:
// struct ib_uverbs_dealloc_pd, ib_uverbs_dereg_mr, ib_uverbs_dealloc_mw and
// ib_uverbs_destroy_ah.
type handleOnly struct {
	handle uint32
}

// destroyIn is every command that destroys by a handle and has an answer:
// struct ib_uverbs_destroy_cq, ib_uverbs_destroy_qp and ib_uverbs_destroy_srq.
type destroyIn struct {
	_      uint64 // response
	handle uint32
	_      uint32 // reserved
}

// regMRIn is struct ib_uverbs_reg_mr.
type regMRIn struct {
	response    uint64
	start       uint64
	length      uint64
	hcaVA       uint64
	pdHandle    uint32
	accessFlags uint32
}

// regMROut is struct ib_uverbs_reg_mr_resp.
type regMROut struct {
	handle uint32
	lkey   uint32
	rkey   uint32
}

// reregMRIn is struct ib_uverbs_rereg_mr.
type reregMRIn struct {
	_           uint64 // response
	handle      uint32
	flags       uint32
	start       uint64
	length      uint64
	hcaVA       uint64
	pdHandle    uint32
	accessFlags uint32
}

// reregMROut is struct ib_uverbs_rereg_mr_resp.
type reregMROut struct {
	lkey uint32
	rkey uint32
}

// allocMWIn is struct ib_uverbs_alloc_mw.
type allocMWIn struct {
	_        uint64 // response
	pdHandle uint32
	mwType   uint8
	_        [3]uint8 // reserved
}

// allocMWOut is struct ib_uverbs_alloc_mw_resp.
type allocMWOut struct {
	handle uint32
	rkey   uint32
}

// createCompChannelOut is struct ib_uverbs_create_comp_channel_resp.
type createCompChannelOut struct {
	fd uint32
}

// createCQIn is struct ib_uverbs_create_cq.
type createCQIn struct {
	_           uint64 // response
	userHandle  uint64
	cqe         uint32
	compVector  uint32
	compChannel int32  // -1: none
	_           uint32 // reserved
}

// createCQOut is struct ib_uverbs_create_cq_resp.
type createCQOut struct {
	handle uint32
	cqe    uint32
}

// resizeCQIn is struct ib_uverbs_resize_cq.
type resizeCQIn struct {
	_      uint64 // response
	handle uint32
	cqe    uint32
}

// resizeCQOut is struct ib_uverbs_resize_cq_resp.
type resizeCQOut struct {
	cqe uint32
	_   uint32 // reserved
}

// uverbsWC is struct ib_uverbs_wc. rxe writes it into its queues.
type uverbsWC struct {
	wrID      uint64
	status    uint32
	opcode    uint32
	vendorErr uint32
	byteLen   uint32
	ex        uint32 // immediate in network byte order, or an rkey in ours
	qpNum     uint32
	srcQP     uint32
	wcFlags   uint32
	_         uint16 // pkeyIndex
	_         uint16 // slid
	_         uint8  // sl
	_         uint8  // dlidPathBits
	_         uint8  // portNum
	_         uint8  // reserved
}

// reqNotifyCQIn is struct ib_uverbs_req_notify_cq.
type reqNotifyCQIn struct {
	handle        uint32
	solicitedOnly uint32
}

// destroyCQOut is struct ib_uverbs_destroy_cq_resp.
type destroyCQOut struct {
	_ uint32 // compEventsReported
	_ uint32 // asyncEventsReported
}

// globalRoute is struct ib_uverbs_global_route.
type globalRoute struct {
	dgid         [16]uint8
	flowLabel    uint32
	sgidIndex    uint8
	hopLimit     uint8
	trafficClass uint8
	_            uint8 // reserved
}

// ahAttr is struct ib_uverbs_ah_attr.
type ahAttr struct {
	grh         globalRoute
	dlid        uint16
	sl          uint8
	srcPathBits uint8
	staticRate  uint8
	isGlobal    uint8
	portNum     uint8
	_           uint8 // reserved
}

// createQPIn is struct ib_uverbs_create_qp.
type createQPIn struct {
	_          uint64 // response
	userHandle uint64
	pdHandle   uint32
	sendCQ     uint32
	recvCQ     uint32
	srqHandle  uint32
	maxSendWR  uint32
	maxRecvWR  uint32
	maxSendSGE uint32
	maxRecvSGE uint32
	maxInline  uint32
	sqSigAll   uint8
	qpType     uint8
	isSRQ      uint8
	_          uint8 // reserved
}

// createQPOut is struct ib_uverbs_create_qp_resp.
type createQPOut struct {
	handle     uint32
	qpn        uint32
	maxSendWR  uint32
	maxRecvWR  uint32
	maxSendSGE uint32
	maxRecvSGE uint32
	maxInline  uint32
	_          uint32 // reserved
}

// qpDest is struct ib_uverbs_qp_dest.
type qpDest struct {
	dgid         [16]uint8
	flowLabel    uint32
	dlid         uint16
	_            uint16 // reserved
	sgidIndex    uint8
	hopLimit     uint8
	trafficClass uint8
	sl           uint8
	srcPathBits  uint8
	staticRate   uint8
	isGlobal     uint8
	portNum      uint8
}

// queryQPIn is struct ib_uverbs_query_qp.
type queryQPIn struct {
	_        uint64 // response
	handle   uint32
	attrMask uint32
}

// queryQPOut is struct ib_uverbs_query_qp_resp.
type queryQPOut struct {
	dest            qpDest
	altDest         qpDest
	maxSendWR       uint32
	maxRecvWR       uint32
	maxSendSGE      uint32
	maxRecvSGE      uint32
	maxInline       uint32
	qkey            uint32
	rqPSN           uint32
	sqPSN           uint32
	destQPNum       uint32
	accessFlags     uint32
	pkeyIndex       uint16
	altPKeyIndex    uint16
	qpState         uint8
	curQPState      uint8
	pathMTU         uint8
	pathMigState    uint8
	sqDraining      uint8
	maxRdAtomic     uint8
	maxDestRdAtomic uint8
	minRNRTimer     uint8
	portNum         uint8
	timeout         uint8
	retryCnt        uint8
	rnrRetry        uint8
	altPortNum      uint8
	altTimeout      uint8
	_               uint8    // sqSigAll
	_               [5]uint8 // reserved
}

// modifyQPIn is struct ib_uverbs_modify_qp.
type modifyQPIn struct {
	dest             qpDest
	altDest          qpDest
	handle           uint32
	attrMask         uint32
	qkey             uint32
	rqPSN            uint32
	sqPSN            uint32
	destQPNum        uint32
	accessFlags      uint32
	pkeyIndex        uint16
	altPKeyIndex     uint16
	qpState          uint8
	curQPState       uint8
	pathMTU          uint8
	pathMigState     uint8
	enSQDAsyncNotify uint8
	maxRdAtomic      uint8
	maxDestRdAtomic  uint8
	minRNRTimer      uint8
	portNum          uint8
	timeout          uint8
	retryCnt         uint8
	rnrRetry         uint8
	altPortNum       uint8
	altTimeout       uint8
	_                [2]uint8 // reserved
}

// destroyQPOut is struct ib_uverbs_destroy_qp_resp, and struct
// ib_uverbs_destroy_srq_resp.
type destroyQPOut struct {
	_ uint32 // eventsReported
}

// postSendIn is struct ib_uverbs_post_send. Without requests behind it, it
// is the doorbell of a queue in mapped memory.
type postSendIn struct {
	response uint64
	handle   uint32
	_        uint32 // wrCount
	_        uint32 // sgeCount
	wqeSize  uint32 // at least sizeof(struct ib_uverbs_send_wr)
}

// postSendOut is struct ib_uverbs_post_send_resp.
type postSendOut struct {
	_ uint32 // badWR
}

// sendWRSize is sizeof(struct ib_uverbs_send_wr).
const sendWRSize = 56

// createAHIn is struct ib_uverbs_create_ah.
type createAHIn struct {
	_        uint64 // response
	_        uint64 // userHandle
	pdHandle uint32
	_        uint32 // reserved
	attr     ahAttr
}

// createAHOut is struct ib_uverbs_create_ah_resp.
type createAHOut struct {
	handle uint32
}

// createSRQIn is struct ib_uverbs_create_srq.
type createSRQIn struct {
	_          uint64 // response
	userHandle uint64
	pdHandle   uint32
	maxWR      uint32
	maxSGE     uint32
	limit      uint32
}

// createSRQOut is struct ib_uverbs_create_srq_resp.
type createSRQOut struct {
	handle uint32
	maxWR  uint32
	maxSGE uint32
	_      uint32 // srqn
}

// modifySRQIn is struct ib_uverbs_modify_srq.
type modifySRQIn struct {
	handle   uint32
	attrMask uint32
	maxWR    uint32
	limit    uint32
}

// querySRQIn is struct ib_uverbs_query_srq.
type querySRQIn struct {
	_      uint64 // response
	handle uint32
	_      uint32 // reserved
}

// querySRQOut is struct ib_uverbs_query_srq_resp.
type querySRQOut struct {
	_      uint32 // maxWR
	maxSGE uint32
	limit  uint32
	_      uint32 // reserved
}
