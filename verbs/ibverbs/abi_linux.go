//go:build amd64 || arm64

package ibverbs

// The structures of infiniband/verbs.h, as rdma-core 44 has them (libibverbs.so.1). What
// the library gives out it may make longer at its end, and what it takes in it may not.
// Pointers are addresses: none is Go's. A test compares the layouts with those that a C
// compiler makes.

// Indexes of the operations of a context that programs call without the library (struct
// ibv_context_ops).
const (
	opAllocMW     = 7
	opBindMW      = 8
	opDeallocMW   = 9
	opPollCQ      = 11
	opReqNotifyCQ = 12
	opPostSRQRecv = 20
	opPostSend    = 25
	opPostRecv    = 26
	contextOps    = 32
)

// extendedABI is abi_compat of a context that has a struct verbs_context around it.
const extendedABI = ^uintptr(0)

// condBytes is the size of pthread_cond_t.
const condBytes = 48

// IBV_CQ_INIT_ATTR_MASK_FLAGS, and IBV_CREATE_CQ_ATTR_SINGLE_THREADED of them.
const (
	cqInitFlags      = 1 << 0
	cqSingleThreaded = 1 << 0
)

// IBV_CQ_ATTR_MODERATE, and what completions of a CQ tell: IBV_WC_STANDARD_FLAGS, the time by the
// clock of the device, and by that of the host.
const (
	cqAttrModerate  = 1 << 0
	wcStandard      = 1<<7 - 1
	wcWithTimestamp = 1 << 7
	wcWithWallTime  = 1 << 11
)

// valuesRawClock is IBV_VALUES_MASK_RAW_CLOCK.
const valuesRawClock = 1 << 0

// adviseFlush is IBV_ADVISE_MR_FLAG_FLUSH: the call returns when it is done.
const adviseFlush = 1 << 0

// Which fields of the structures of XRC are given (enum ibv_xrcd_init_attr_mask,
// ibv_srq_init_attr_mask, ibv_qp_init_attr_mask and ibv_qp_open_attr_mask), and IBV_SRQT_XRC.
const (
	xrcdAttrFile   = 1<<0 | 1<<1
	srqAttrXRC     = 1<<0 | 1<<1 | 1<<2 | 1<<3
	qpAttrDomain   = 1 << 1
	openAttrTarget = 1<<0 | 1<<1 | 1<<3
	srqTypeXRC     = 1
)

type (
	// ibvContext is struct ibv_context.
	ibvContext struct {
		device         uintptr
		ops            [contextOps]uintptr
		cmdFD          int32
		asyncFD        int32
		numCompVectors int32
		_              [mutexBytes]byte
		abiCompat      uintptr
	}

	// verbsContext is the end of what lies in front of struct ibv_context (struct
	// verbs_context): operations that came later, the newest first. What is newer
	// than advice is left out.
	verbsContext struct {
		adviseMR      uintptr
		allocNullMR   uintptr
		_             [4]uintptr
		regDMMR       uintptr
		allocDM       uintptr
		freeDM        uintptr
		_             [4]uintptr
		allocParent   uintptr
		deallocTD     uintptr
		allocTD       uintptr
		modifyCQ      uintptr
		_             [6]uintptr
		queryRTValues uintptr
		createCQEx    uintptr
		_             uintptr // priv
		queryDeviceEx uintptr
		_             [4]uintptr
		openQP        uintptr
		createQPEx    uintptr
		getSRQNum     uintptr
		createSRQEx   uintptr
		openXRCD      uintptr
		closeXRCD     uintptr
		_             uintptr
		sz            uintptr // of struct verbs_context, in which that is the last before the context
	}

	// ibvDeviceAttrEx is struct ibv_device_attr_ex.
	ibvDeviceAttrEx struct {
		_             ibvDeviceAttr
		_             uint32 // comp_mask
		odp           odpCaps
		timestampMask uint64
		hcaCoreClock  uint64 // kHz
		_             uint64 // device_cap_flags_ex
		_             [2]uint32
		_             rssCaps
		_             [1 + 3 + 1 + 5]uint32 // max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps
		maxCQCount    uint16
		maxCQPeriod   uint16 // microseconds
		maxDMSize     uint64
		_             [3]uint16
		xrcODP        uint32
		_             uint32 // phys_port_cnt_ex
	}

	// odpCaps is struct ibv_odp_caps.
	odpCaps struct {
		general    uint64
		rc, uc, ud uint32
	}

	// rssCaps is struct ibv_rss_caps.
	rssCaps struct {
		_ [3]uint32
		_ uint64
		_ uint8
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

	// ibvCQInitAttrEx is struct ibv_cq_init_attr_ex.
	ibvCQInitAttrEx struct {
		cqe        uint32
		_          uintptr // cq_context
		channel    uintptr
		compVector uint32
		wcFlags    uint64
		compMask   uint32
		flags      uint32
		_          uintptr // parent_domain
	}

	// ibvCQEx is struct ibv_cq_ex, which begins as struct ibv_cq does. Its functions take its
	// address and tell of the completion that is looked at.
	ibvCQEx struct {
		_                [3]uintptr
		_                [2]uint32
		_                [mutexBytes + condBytes]byte
		_                [3]uint32
		status           int32
		wrID             uint64
		startPoll        uintptr
		nextPoll         uintptr
		endPoll          uintptr
		readOpcode       uintptr
		readVendorErr    uintptr
		readByteLen      uintptr
		readImm          uintptr
		readQPNum        uintptr
		readSrcQP        uintptr
		readWCFlags      uintptr
		readSLID         uintptr
		readSL           uintptr
		readDLIDPathBits uintptr
		readTimestamp    uintptr
		_                [3]uintptr
		readWallTime     uintptr
	}

	// ibvPollCQAttr is struct ibv_poll_cq_attr.
	ibvPollCQAttr struct {
		_ uint32 // comp_mask
	}

	// ibvModifyCQAttr is struct ibv_modify_cq_attr, with a struct ibv_moderate_cq.
	ibvModifyCQAttr struct {
		attrMask uint32
		count    uint16
		period   uint16 // microseconds
	}

	// ibvPD is the beginning of struct ibv_pd.
	ibvPD struct {
		context uintptr
	}

	// ibvTDInitAttr is struct ibv_td_init_attr.
	ibvTDInitAttr struct {
		_ uint32 // comp_mask
	}

	// ibvTD is struct ibv_td.
	ibvTD struct {
		context uintptr
	}

	// ibvParentDomainInitAttr is struct ibv_parent_domain_init_attr.
	ibvParentDomainInitAttr struct {
		pd uintptr
		td uintptr
		_  uint32     // comp_mask
		_  [3]uintptr // alloc, free, pd_context
	}

	// ibvValuesEx is struct ibv_values_ex, with its struct timespec.
	ibvValuesEx struct {
		compMask uint32
		_        int64 // raw_clock.tv_sec
		ticks    uint64
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

	// ibvAllocDMAttr is struct ibv_alloc_dm_attr.
	ibvAllocDMAttr struct {
		length uintptr
		_      uint32 // log_align_req
		_      uint32 // comp_mask
	}

	// ibvDM is struct ibv_dm.
	ibvDM struct {
		context    uintptr
		memcpyTo   uintptr
		memcpyFrom uintptr
		_          uint32 // comp_mask
		_          uint32 // handle
	}

	// ibvMW is struct ibv_mw.
	ibvMW struct {
		context uintptr
		pd      uintptr
		rkey    uint32
		_       uint32 // handle
		typ     int32
	}

	// ibvMWBindInfo is struct ibv_mw_bind_info.
	ibvMWBindInfo struct {
		mr     uintptr
		addr   uint64
		length uint64
		access uint32
	}

	// ibvMWBind is struct ibv_mw_bind.
	ibvMWBind struct {
		wrID      uint64
		sendFlags uint32
		info      ibvMWBindInfo
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

	// ibvQPInitAttrEx is struct ibv_qp_init_attr_ex.
	ibvQPInitAttrEx struct {
		_        [4]uintptr // qp_context, send_cq, recv_cq, srq
		_        ibvQPCap
		qpType   int32
		_        int32 // sq_sig_all
		compMask uint32
		_        uintptr // pd
		xrcd     uintptr
		_        uint32 // create_flags
		_        uint16 // max_tso_header
		_        uintptr
		_        rxHashConf
		_        uint32 // source_qpn
		_        uint64 // send_ops_flags
	}

	// rxHashConf is struct ibv_rx_hash_conf.
	rxHashConf struct {
		_ [2]uint8
		_ uintptr
		_ uint64
	}

	// ibvQPOpenAttr is struct ibv_qp_open_attr.
	ibvQPOpenAttr struct {
		compMask uint32
		qpNum    uint32
		xrcd     uintptr
		_        uintptr // qp_context
		qpType   int32
	}

	// ibvXRCDInitAttr is struct ibv_xrcd_init_attr.
	ibvXRCDInitAttr struct {
		compMask uint32
		fd       int32
		oflags   int32
	}

	// ibvXRCD is struct ibv_xrcd.
	ibvXRCD struct {
		context uintptr
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

	// ibvSRQInitAttrEx is struct ibv_srq_init_attr_ex.
	ibvSRQInitAttrEx struct {
		_        uintptr // srq_context
		attr     ibvSRQAttr
		compMask uint32
		srqType  int32
		pd       uintptr
		xrcd     uintptr
		cq       uintptr
		_        [2]uint32 // tm_cap
	}

	// ibvSGE is struct ibv_sge.
	ibvSGE struct {
		addr   uint64
		length uint32
		lkey   uint32
	}

	// ibvBind is bind_mw of the last union of struct ibv_send_wr.
	ibvBind struct {
		mw   uintptr
		rkey uint32
		info ibvMWBindInfo
	}

	// ibvSendWR is struct ibv_send_wr. Of its first union, wr, there are rdma, atomic and
	// ud; they share their words, which are named for none of them.
	ibvSendWR struct {
		wrID      uint64
		next      uintptr
		sgList    uintptr
		numSGE    int32
		opcode    int32
		sendFlags uint32
		imm       uint32    // in network byte order, or the rkey to invalidate
		wr        [4]uint64 // see remote, atomic and datagram
		remoteSRQ uint32    // of the second union, qp_type
		_         uint32
		bind      ibvBind
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
