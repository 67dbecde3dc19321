package kernelcm

import "unsafe"

// The commands of /dev/infiniband/rdma_cm and their bodies, as
// rdma/rdma_user_cm.h of the kernel has them. A command is one write(2) of a
// ucmHeader and a body; what the kernel answers it stores where the body's
// response field points. Numbers are in the byte order of the machine unless
// the field is marked; the tests check every size and offset against those
// that C has. Padding is written out, so that the layouts are the same on
// machines that align 64-bit numbers to 4 bytes.

// ucmCommand is a number of enum rdma_ucm_cmd.
type ucmCommand uint32

const (
	ucmCreateID     ucmCommand = 0
	ucmDestroyID    ucmCommand = 1
	ucmResolveRoute ucmCommand = 4
	ucmConnect      ucmCommand = 6
	ucmListen       ucmCommand = 7
	ucmAccept       ucmCommand = 8
	ucmReject       ucmCommand = 9
	ucmDisconnect   ucmCommand = 10
	ucmInitQPAttr   ucmCommand = 11
	ucmGetEvent     ucmCommand = 12
	ucmSetOption    ucmCommand = 14
	ucmQuery        ucmCommand = 19
	ucmBind         ucmCommand = 20
	ucmResolveAddr  ucmCommand = 21
	ucmJoin         ucmCommand = 22
)

var ucmCommandNames = map[ucmCommand]string{
	ucmCreateID: "CREATE_ID", ucmDestroyID: "DESTROY_ID", ucmResolveRoute: "RESOLVE_ROUTE",
	ucmConnect: "CONNECT", ucmListen: "LISTEN", ucmAccept: "ACCEPT", ucmReject: "REJECT",
	ucmDisconnect: "DISCONNECT", ucmInitQPAttr: "INIT_QP_ATTR", ucmGetEvent: "GET_EVENT",
	ucmSetOption: "SET_OPTION", ucmQuery: "QUERY", ucmBind: "BIND", ucmResolveAddr: "RESOLVE_ADDR",
	ucmJoin: "JOIN_MCAST",
}

// String names the command as the header does.
func (c ucmCommand) String() string { return ucmCommandNames[c] }

// portSpace is a number of enum rdma_ucm_port_space.
type portSpace uint16

const (
	portSpaceTCP portSpace = 0x0106 // reliable connections, addressed like TCP's
	portSpaceUDP portSpace = 0x0111 // UD QPs, addressed like UDP's
)

// Options of SET_OPTION at level RDMA_OPTION_ID.
const (
	ucmLevelID   = 0
	ucmOptionTOS = 0 // one byte
)

// queryAddr is RDMA_USER_CM_QUERY_ADDR.
const queryAddr = 0

// ucmMaxPrivateData is RDMA_MAX_PRIVATE_DATA, the size of each field for
// private data; how much of it travels depends on the message.
const ucmMaxPrivateData = 256

// sockaddrSize is the size of struct __kernel_sockaddr_storage.
const sockaddrSize = 128

type ucmHeader struct { // struct rdma_ucm_cmd_hdr
	cmd uint32
	in  uint16 // bytes of the body
	out uint16 // bytes that the response has room for
}

type ucmCreateIDBody struct { // struct rdma_ucm_create_id
	uid      uint64
	response uint64 // address of a uint32, the id
	space    uint16
	qpType   uint8
	_        [5]uint8
}

type ucmDestroyIDBody struct { // struct rdma_ucm_destroy_id
	response uint64 // address of a uint32, the number of events that were read
	id       uint32
	_        uint32
}

type ucmBindBody struct { // struct rdma_ucm_bind
	id       uint32
	addrSize uint16
	_        uint16
	addr     [sockaddrSize]byte
}

type ucmResolveAddrBody struct { // struct rdma_ucm_resolve_addr
	id        uint32
	timeoutMS uint32
	srcSize   uint16
	dstSize   uint16
	_         uint32
	src       [sockaddrSize]byte
	dst       [sockaddrSize]byte
}

type ucmResolveRouteBody struct { // struct rdma_ucm_resolve_route
	id        uint32
	timeoutMS uint32
}

type ucmQueryBody struct { // struct rdma_ucm_query
	response uint64 // address of a ucmQueryAddrResponse
	id       uint32
	option   uint32
}

type ucmQueryAddrResponse struct { // struct rdma_ucm_query_addr_resp
	nodeGUID    [8]byte // big endian; zero without a device
	port        uint8
	_           uint8
	pkey        uint16
	srcSize     uint16
	dstSize     uint16
	src         [sockaddrSize]byte
	dst         [sockaddrSize]byte
	deviceIndex uint32 // not written by kernels before 5.4
	_           uint32
}

type ucmConnParam struct { // struct rdma_ucm_conn_param
	qpNum              uint32
	qkey               uint32
	privateData        [ucmMaxPrivateData]byte
	privateDataLen     uint8
	srq                uint8
	responderResources uint8
	initiatorDepth     uint8
	flowControl        uint8
	retryCount         uint8
	rnrRetryCount      uint8
	valid              uint8
}

type ucmConnectBody struct { // struct rdma_ucm_connect
	param ucmConnParam
	id    uint32
	_     uint32
	ece   [2]uint32 // struct rdma_ucm_ece: vendor extensions, none
}

type ucmListenBody struct { // struct rdma_ucm_listen
	id      uint32
	backlog uint32
}

type ucmAcceptBody struct { // struct rdma_ucm_accept
	uid   uint64
	param ucmConnParam
	id    uint32
	_     uint32
	ece   [2]uint32
}

type ucmRejectBody struct { // struct rdma_ucm_reject
	id             uint32
	privateDataLen uint8
	reason         uint8 // 0 means 28, consumer defined
	_              [2]uint8
	privateData    [ucmMaxPrivateData]byte
}

type ucmDisconnectBody struct { // struct rdma_ucm_disconnect
	id uint32
}

type ucmJoinBody struct { // struct rdma_ucm_join_mcast
	response uint64 // address of a uint32, the kernel's name for the membership
	uid      uint64 // of its events
	id       uint32
	addrSize uint16
	flags    uint16
	addr     [sockaddrSize]byte
}

// joinSendOnly is RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.
const joinSendOnly = 1

type ucmInitQPAttrBody struct { // struct rdma_ucm_init_qp_attr
	response uint64 // address of a ucmQPAttr
	id       uint32
	state    uint32
}

type ucmGetEventBody struct { // struct rdma_ucm_get_event
	response uint64 // address of eventSize bytes
}

type ucmSetOptionBody struct { // struct rdma_ucm_set_option
	value  uint64 // address
	id     uint32
	level  uint32
	name   uint32
	length uint32
}

type ucmAHAttr struct { // struct ib_uverbs_ah_attr
	dgid         [16]byte // from here struct ib_uverbs_global_route
	flowLabel    uint32
	sgidIndex    uint8
	hopLimit     uint8
	trafficClass uint8
	_            uint8
	dlid         uint16
	sl           uint8
	srcPathBits  uint8
	staticRate   uint8
	isGlobal     uint8
	port         uint8
	_            uint8
}

type ucmQPAttr struct { // struct ib_uverbs_qp_attr
	mask             uint32
	state            uint32
	curState         uint32
	pathMTU          uint32
	pathMigState     uint32
	qkey             uint32
	rqPSN            uint32
	sqPSN            uint32
	destQPN          uint32
	access           uint32
	ah               ucmAHAttr
	altAH            ucmAHAttr
	maxSendWR        uint32
	maxRecvWR        uint32
	maxSendSGE       uint32
	maxRecvSGE       uint32
	maxInline        uint32
	pkeyIndex        uint16
	altPKeyIndex     uint16
	enSQDAsyncNotify uint8
	sqDraining       uint8
	maxRdAtomic      uint8
	maxDestRdAtomic  uint8
	minRNRTimer      uint8
	port             uint8
	timeout          uint8
	retryCount       uint8
	rnrRetry         uint8
	altPort          uint8
	altTimeout       uint8
	_                [5]uint8
}

const (
	querySize  = unsafe.Sizeof(ucmQueryAddrResponse{})
	qpAttrSize = unsafe.Sizeof(ucmQPAttr{})
)
