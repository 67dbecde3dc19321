//go:build amd64 || arm64

package ibverbs

// The structures of infiniband/verbs.h, as rdma-core 44 has them (libibverbs.so.1). What
// the library gives out it may make longer at its end, and what it takes in it may not.
// Pointers are addresses: none is Go's. A test compares the layouts with those that a C
// compiler makes.

// Indexes of the operations of a context that programs call without the library (struct
// ibv_context_ops).
const (
	opPollCQ      = 11
	opReqNotifyCQ = 12
	opPostSRQRecv = 20
	opPostSend    = 25
	opPostRecv    = 26
	contextOps    = 32
)

type (
	// ibvContext is the beginning of struct ibv_context.
	ibvContext struct {
		device         uintptr
		ops            [contextOps]uintptr
		cmdFD          int32
		asyncFD        int32
		numCompVectors int32
	}

	// ibvDeviceAttr is struct ibv_device_attr.
	ibvDeviceAttr struct {
		fwVer               [64]byte
		nodeGUID            [8]byte // in network byte order
		sysImageGUID        [8]byte // in network byte order
		maxMRSize           uint64
		pageSizeCap         uint64
		vendorID            uint32
		vendorPartID        uint32
		hwVer               uint32
		maxQP               int32
		maxQPWR             int32
		deviceCapFlags      uint32
		maxSGE              int32
		maxSGERead          int32
		maxCQ               int32
		maxCQE              int32
		maxMR               int32
		maxPD               int32
		maxQPRdAtom         int32
		maxEERdAtom         int32
		maxResRdAtom        int32
		maxQPInitRdAtom     int32
		maxEEInitRdAtom     int32
		atomicCap           int32
		maxEE               int32
		maxRDD              int32
		maxMW               int32
		maxRawIPv6QP        int32
		maxRawEthyQP        int32
		maxMcastGrp         int32
		maxMcastQPAttach    int32
		maxTotalMcastAttach int32
		maxAH               int32
		maxFMR              int32
		maxMapPerFMR        int32
		maxSRQ              int32
		maxSRQWR            int32
		maxSRQSGE           int32
		maxPKeys            uint16
		localCAAckDelay     uint8
		physPortCnt         uint8
	}

	// ibvPortAttr is struct ibv_port_attr. The exported ibv_query_port fills it as far as
	// flags.
	ibvPortAttr struct {
		state         int32
		maxMTU        int32
		activeMTU     int32
		gidTblLen     int32
		portCapFlags  uint32
		maxMsgSize    uint32
		badPKeyCntr   uint32
		qkeyViolCntr  uint32
		pkeyTblLen    uint16
		lid           uint16
		smLID         uint16
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
		portCapFlags2 uint16
	}

	// ibvGIDEntry is struct ibv_gid_entry.
	ibvGIDEntry struct {
		gid     [16]byte
		index   uint32
		port    uint32
		typ     uint32
		ifindex uint32
	}

	// ibvCompChannel is struct ibv_comp_channel.
	ibvCompChannel struct {
		context uintptr
		fd      int32
		_       int32 // refcnt
	}

	// ibvCQ is the beginning of struct ibv_cq.
	ibvCQ struct {
		context uintptr
		channel uintptr
		_       uintptr // cqContext
		_       uint32  // handle
		cqe     int32
	}

	// ibvMR is struct ibv_mr.
	ibvMR struct {
		context uintptr
		pd      uintptr
		_       uintptr // addr
		length  uintptr
		_       uint32 // handle
		lkey    uint32
		rkey    uint32
	}

	// ibvQPCap is struct ibv_qp_cap.
	ibvQPCap struct {
		maxSendWR, maxRecvWR, maxSendSGE, maxRecvSGE, maxInline uint32
	}

	// ibvQPInitAttr is struct ibv_qp_init_attr.
	ibvQPInitAttr struct {
		qpContext uintptr
		sendCQ    uintptr
		recvCQ    uintptr
		srq       uintptr
		cap       ibvQPCap
		qpType    int32
		sqSigAll  int32
	}

	// ibvQP is the beginning of struct ibv_qp.
	ibvQP struct {
		context uintptr
		_       uintptr // qpContext
		pd      uintptr
		sendCQ  uintptr
		_       uintptr // recvCQ
		_       uintptr // srq
		_       uint32  // handle
		qpNum   uint32
		_       int32 // state
		qpType  int32
	}

	// ibvGlobalRoute is struct ibv_global_route.
	ibvGlobalRoute struct {
		dgid         [16]byte
		flowLabel    uint32
		sgidIndex    uint8
		hopLimit     uint8
		trafficClass uint8
	}

	// ibvAHAttr is struct ibv_ah_attr.
	ibvAHAttr struct {
		grh         ibvGlobalRoute
		dlid        uint16
		sl          uint8
		srcPathBits uint8
		staticRate  uint8
		isGlobal    uint8
		portNum     uint8
	}

	// ibvQPAttr is struct ibv_qp_attr.
	ibvQPAttr struct {
		qpState          int32
		curQPState       int32
		pathMTU          int32
		pathMigState     int32
		qkey             uint32
		rqPSN            uint32
		sqPSN            uint32
		destQPNum        uint32
		accessFlags      uint32
		cap              ibvQPCap
		ah               ibvAHAttr
		altAH            ibvAHAttr
		pkeyIndex        uint16
		altPKeyIndex     uint16
		enSQDAsyncNotify uint8
		sqDraining       uint8
		maxRdAtomic      uint8
		maxDestRdAtomic  uint8
		minRNRTimer      uint8
		portNum          uint8
		timeout          uint8
		retryCnt         uint8
		rnrRetry         uint8
		altPortNum       uint8
		altTimeout       uint8
		rateLimit        uint32
		_                uint32 // C aligns GIDs to eight bytes
	}

	// ibvSRQAttr is struct ibv_srq_attr.
	ibvSRQAttr struct {
		maxWR, maxSGE, limit uint32
	}

	// ibvSRQInitAttr is struct ibv_srq_init_attr.
	ibvSRQInitAttr struct {
		srqContext uintptr
		attr       ibvSRQAttr
	}

	// ibvSGE is struct ibv_sge.
	ibvSGE struct {
		addr   uint64
		length uint32
		lkey   uint32
	}

	// ibvSendWR is struct ibv_send_wr. Of its first union, wr, there are rdma, atomic and
	// ud; they share their words, which are named for none of them. Of the last one, which
	// is for windows, there is the room.
	ibvSendWR struct {
		wrID      uint64
		next      uintptr
		sgList    uintptr
		numSGE    int32
		opcode    int32
		sendFlags uint32
		imm       uint32    // in network byte order, or the rkey to invalidate
		wr        [4]uint64 // see remote, atomic and datagram
		xrc       uint64
		_         [6]uint64
	}

	// ibvRecvWR is struct ibv_recv_wr.
	ibvRecvWR struct {
		wrID   uint64
		next   uintptr
		sgList uintptr
		numSGE int32
	}

	// ibvWC is struct ibv_wc.
	ibvWC struct {
		wrID         uint64
		status       int32
		opcode       int32
		vendorErr    uint32
		byteLen      uint32
		imm          uint32 // in network byte order, or the rkey that was invalidated
		qpNum        uint32
		srcQP        uint32
		wcFlags      uint32
		pkeyIndex    uint16
		slid         uint16
		sl           uint8
		dlidPathBits uint8
	}

	// ibvAsyncEvent is struct ibv_async_event.
	ibvAsyncEvent struct {
		element   uintptr // or the number of a port
		eventType int32
	}
)
