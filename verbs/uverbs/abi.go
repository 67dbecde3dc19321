package uverbs

// The structures of rdma/ib_user_verbs.h and rdma/ib_user_ioctl_cmds.h that
// this package uses, in the order of the header; the comment of each names
// the C structure. Commands begin with the address of their answer, which the
// code that runs them sets where the kernel wants it (write). Sizes and
// offsets are checked in abi_test.go against those that a C compiler makes.

// asyncEventDesc is struct ib_uverbs_async_event_desc.
type asyncEventDesc struct {
	element   uint64 // user handle of a QP, CQ or SRQ, or a port number
	eventType uint32
	reserved  uint32
}

// compEventDesc is struct ib_uverbs_comp_event_desc.
type compEventDesc struct {
	cqHandle uint64 // user handle of the CQ
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
	response        uint64
	driverInWords   uint16
	driverOutWords  uint16
	commandReserved uint32
}

// responseOnly is every command that has nothing but an answer: struct
// ib_uverbs_get_context, ib_uverbs_query_device, ib_uverbs_alloc_pd and
// ib_uverbs_create_comp_channel.
type responseOnly struct {
	response uint64
}

// getContextOut is struct ib_uverbs_get_context_resp.
type getContextOut struct {
	asyncFD        uint32
	numCompVectors uint32
}

// queryDeviceOut is struct ib_uverbs_query_device_resp. The GUIDs are in
// network byte order.
type queryDeviceOut struct {
	fwVer                 uint64
	nodeGUID              [8]byte
	sysImageGUID          [8]byte
	maxMRSize             uint64
	pageSizeCap           uint64
	vendorID              uint32
	vendorPartID          uint32
	hwVer                 uint32
	maxQP                 uint32
	maxQPWR               uint32
	deviceCapFlags        uint32
	maxSGE                uint32
	maxSGERead            uint32
	maxCQ                 uint32
	maxCQE                uint32
	maxMR                 uint32
	maxPD                 uint32
	maxQPRdAtom           uint32
	maxEERdAtom           uint32
	maxResRdAtom          uint32
	maxQPInitRdAtom       uint32
	maxEEInitRdAtom       uint32
	atomicCap             uint32
	maxEE                 uint32
	maxRDD                uint32
	maxMW                 uint32
	maxRawIPv6QP          uint32
	maxRawEthyQP          uint32
	maxMcastGrp           uint32
	maxMcastQPAttach      uint32
	maxTotalMcastQPAttach uint32
	maxAH                 uint32
	maxFMR                uint32
	maxMapPerFMR          uint32
	maxSRQ                uint32
	maxSRQWR              uint32
	maxSRQSGE             uint32
	maxPKeys              uint16
	localCAAckDelay       uint8
	physPortCnt           uint8
	reserved              [4]uint8
}

// exQueryDeviceIn is struct ib_uverbs_ex_query_device.
type exQueryDeviceIn struct {
	compMask uint32
	reserved uint32
}

// odpCaps is struct ib_uverbs_odp_caps.
type odpCaps struct {
	general    uint64
	rc, uc, ud uint32
	reserved   uint32
}

// exQueryDeviceOut is struct ib_uverbs_ex_query_device_resp.
type exQueryDeviceOut struct {
	base             queryDeviceOut
	compMask         uint32
	responseLength   uint32 // bytes that this kernel filled in
	odp              odpCaps
	timestampMask    uint64
	hcaCoreClock     uint64
	deviceCapFlagsEx uint64
	rssCaps          [4]uint32
	maxWQTypeRQ      uint32
	rawPacketCaps    uint32
	tmCaps           [6]uint32
	cqModerationCaps [2]uint32
	maxDMSize        uint64
	xrcODPCaps       uint32
	reserved         uint32
}

// queryPortIn is struct ib_uverbs_query_port.
type queryPortIn struct {
	response uint64
	portNum  uint8
	reserved [7]uint8
}

// queryPortOut is struct ib_uverbs_query_port_resp.
type queryPortOut struct {
	portCapFlags  uint32
	maxMsgSize    uint32
	badPKeyCntr   uint32
	qkeyViolCntr  uint32
	gidTblLen     uint32
	pkeyTblLen    uint16
	lid           uint16
	smLID         uint16
	state         uint8
	maxMTU        uint8
	activeMTU     uint8
	lmc           uint8
	maxVLNum      uint8
	smSL          uint8
	subnetTimeout uint8
	initTypeReply uint8
	activeWidth   uint8
	activeSpeed   uint8
	physState     uint8
	linkLayer     uint8
	flags         uint8
	reserved      uint8
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
	response uint64
	handle   uint32
	reserved uint32
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
	response    uint64
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
	response uint64
	pdHandle uint32
	mwType   uint8
	reserved [3]uint8
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
	response    uint64
	userHandle  uint64
	cqe         uint32
	compVector  uint32
	compChannel int32 // -1: none
	reserved    uint32
}

// createCQOut is struct ib_uverbs_create_cq_resp.
type createCQOut struct {
	handle uint32
	cqe    uint32
}

// resizeCQIn is struct ib_uverbs_resize_cq.
type resizeCQIn struct {
	response uint64
	handle   uint32
	cqe      uint32
}

// resizeCQOut is struct ib_uverbs_resize_cq_resp.
type resizeCQOut struct {
	cqe      uint32
	reserved uint32
}

// uverbsWC is struct ib_uverbs_wc. rxe writes it into its queues.
type uverbsWC struct {
	wrID         uint64
	status       uint32
	opcode       uint32
	vendorErr    uint32
	byteLen      uint32
	ex           uint32 // immediate in network byte order, or an rkey in ours
	qpNum        uint32
	srcQP        uint32
	wcFlags      uint32
	pkeyIndex    uint16
	slid         uint16
	sl           uint8
	dlidPathBits uint8
	portNum      uint8
	reserved     uint8
}

// reqNotifyCQIn is struct ib_uverbs_req_notify_cq.
type reqNotifyCQIn struct {
	handle        uint32
	solicitedOnly uint32
}

// destroyCQOut is struct ib_uverbs_destroy_cq_resp.
type destroyCQOut struct {
	compEventsReported  uint32
	asyncEventsReported uint32
}

// globalRoute is struct ib_uverbs_global_route.
type globalRoute struct {
	dgid         [16]uint8
	flowLabel    uint32
	sgidIndex    uint8
	hopLimit     uint8
	trafficClass uint8
	reserved     uint8
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
	reserved    uint8
}

// createQPIn is struct ib_uverbs_create_qp.
type createQPIn struct {
	response   uint64
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
	reserved   uint8
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
	reserved   uint32
}

// qpDest is struct ib_uverbs_qp_dest.
type qpDest struct {
	dgid         [16]uint8
	flowLabel    uint32
	dlid         uint16
	reserved     uint16
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
	response uint64
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
	sqSigAll        uint8
	reserved        [5]uint8
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
	reserved         [2]uint8
}

// destroyQPOut is struct ib_uverbs_destroy_qp_resp, and struct
// ib_uverbs_destroy_srq_resp.
type destroyQPOut struct {
	eventsReported uint32
}

// postSendIn is struct ib_uverbs_post_send. Without requests behind it, it
// is the doorbell of a queue in mapped memory.
type postSendIn struct {
	response uint64
	handle   uint32
	wrCount  uint32
	sgeCount uint32
	wqeSize  uint32 // at least sizeof(struct ib_uverbs_send_wr)
}

// postSendOut is struct ib_uverbs_post_send_resp.
type postSendOut struct {
	badWR uint32
}

// sendWRSize is sizeof(struct ib_uverbs_send_wr).
const sendWRSize = 56

// createAHIn is struct ib_uverbs_create_ah.
type createAHIn struct {
	response   uint64
	userHandle uint64
	pdHandle   uint32
	reserved   uint32
	attr       ahAttr
}

// createAHOut is struct ib_uverbs_create_ah_resp.
type createAHOut struct {
	handle uint32
}

// createSRQIn is struct ib_uverbs_create_srq.
type createSRQIn struct {
	response   uint64
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
	srqn   uint32
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
	response uint64
	handle   uint32
	reserved uint32
}

// querySRQOut is struct ib_uverbs_query_srq_resp.
type querySRQOut struct {
	maxWR    uint32
	maxSGE   uint32
	limit    uint32
	reserved uint32
}

// ioctlHeader is struct ib_uverbs_ioctl_hdr (rdma/rdma_user_ioctl_cmds.h).
type ioctlHeader struct {
	length    uint16
	objectID  uint16
	methodID  uint16
	numAttrs  uint16
	reserved1 uint64
	driverID  uint32
	reserved2 uint32
}

// ioctlAttr is struct ib_uverbs_attr. data holds up to eight bytes of input,
// a handle, or else an address.
type ioctlAttr struct {
	attrID   uint16
	len      uint16
	flags    uint16
	elemID   uint8
	reserved uint8
	data     uint64
}

// gidEntry is struct ib_uverbs_gid_entry (rdma/ib_user_ioctl_verbs.h).
type gidEntry struct {
	gid     [16]uint8
	index   uint32
	portNum uint32
	gidType uint32
	ifindex uint32
}
