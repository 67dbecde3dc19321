//go:build amd64 || arm64

package ibverbs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// field is one of a structure, with how C and Go call it.
type field struct {
	c    string
	at   uintptr
	size uintptr
}

// layout is a structure, with how C calls it, and its size here. part says that it is but
// the beginning of that of C, or its end before a member.
type layout struct {
	c      string
	size   uintptr
	part   bool
	fields []field
	before string
}

func layouts() []layout {
	var (
		context ibvContext
		before  verbsContext
		dev     ibvDeviceAttr
		more    ibvDeviceAttrEx
		port    ibvPortAttr
		gid     ibvGIDEntry
		channel ibvCompChannel
		cq      ibvCQ
		cqInit  ibvCQInitAttrEx
		cqEx    ibvCQEx
		poll    ibvPollCQAttr
		cqAttr  ibvModifyCQAttr
		pd      ibvPD
		tdInit  ibvTDInitAttr
		td      ibvTD
		parent  ibvParentDomainInitAttr
		values  ibvValuesEx
		mr      ibvMR
		dmAttr  ibvAllocDMAttr
		dm      ibvDM
		mw      ibvMW
		info    ibvMWBindInfo
		bind    ibvMWBind
		init    ibvQPInitAttr
		initEx  ibvQPInitAttrEx
		open    ibvQPOpenAttr
		domain  ibvXRCDInitAttr
		xrcd    ibvXRCD
		srqEx   ibvSRQInitAttrEx
		qpCap   ibvQPCap
		qp      ibvQP
		route   ibvGlobalRoute
		ah      ibvAHAttr
		attr    ibvQPAttr
		srq     ibvSRQInitAttr
		srqAttr ibvSRQAttr
		sge     ibvSGE
		send    ibvSendWR
		recv    ibvRecvWR
		wc      ibvWC
		event   ibvAsyncEvent
	)
	of := func(c string, at, size uintptr) field { return field{c, at, size} }
	op := func(c string, n uintptr) field {
		return of("ops."+c, unsafe.Offsetof(context.ops)+n*unsafe.Sizeof(context.device), unsafe.Sizeof(context.device))
	}
	end := func(c string, at, size uintptr) field { return field{c, unsafe.Sizeof(before) - at, size} }
	union := unsafe.Offsetof(send.wr)
	return []layout{
		{c: "ibv_context", size: unsafe.Sizeof(context), fields: []field{
			of("device", unsafe.Offsetof(context.device), unsafe.Sizeof(context.device)),
			op("alloc_mw", opAllocMW), op("bind_mw", opBindMW), op("dealloc_mw", opDeallocMW),
			op("poll_cq", opPollCQ), op("req_notify_cq", opReqNotifyCQ), op("post_srq_recv", opPostSRQRecv),
			op("post_send", opPostSend), op("post_recv", opPostRecv), op("_compat_async_event", contextOps-1),
			of("cmd_fd", unsafe.Offsetof(context.cmdFD), unsafe.Sizeof(context.cmdFD)),
			of("async_fd", unsafe.Offsetof(context.asyncFD), unsafe.Sizeof(context.asyncFD)),
			of("num_comp_vectors", unsafe.Offsetof(context.numCompVectors), unsafe.Sizeof(context.numCompVectors)),
			of("abi_compat", unsafe.Offsetof(context.abiCompat), unsafe.Sizeof(context.abiCompat)),
		}},
		{c: "verbs_context", part: true, before: "context", fields: []field{
			end("advise_mr", unsafe.Offsetof(before.adviseMR), unsafe.Sizeof(before.adviseMR)),
			end("alloc_null_mr", unsafe.Offsetof(before.allocNullMR), unsafe.Sizeof(before.allocNullMR)),
			end("reg_dm_mr", unsafe.Offsetof(before.regDMMR), unsafe.Sizeof(before.regDMMR)),
			end("alloc_dm", unsafe.Offsetof(before.allocDM), unsafe.Sizeof(before.allocDM)),
			end("free_dm", unsafe.Offsetof(before.freeDM), unsafe.Sizeof(before.freeDM)),
			end("alloc_parent_domain", unsafe.Offsetof(before.allocParent), unsafe.Sizeof(before.allocParent)),
			end("dealloc_td", unsafe.Offsetof(before.deallocTD), unsafe.Sizeof(before.deallocTD)),
			end("alloc_td", unsafe.Offsetof(before.allocTD), unsafe.Sizeof(before.allocTD)),
			end("modify_cq", unsafe.Offsetof(before.modifyCQ), unsafe.Sizeof(before.modifyCQ)),
			end("query_rt_values", unsafe.Offsetof(before.queryRTValues), unsafe.Sizeof(before.queryRTValues)),
			end("create_cq_ex", unsafe.Offsetof(before.createCQEx), unsafe.Sizeof(before.createCQEx)),
			end("query_device_ex", unsafe.Offsetof(before.queryDeviceEx), unsafe.Sizeof(before.queryDeviceEx)),
			end("open_qp", unsafe.Offsetof(before.openQP), unsafe.Sizeof(before.openQP)),
			end("create_qp_ex", unsafe.Offsetof(before.createQPEx), unsafe.Sizeof(before.createQPEx)),
			end("get_srq_num", unsafe.Offsetof(before.getSRQNum), unsafe.Sizeof(before.getSRQNum)),
			end("create_srq_ex", unsafe.Offsetof(before.createSRQEx), unsafe.Sizeof(before.createSRQEx)),
			end("open_xrcd", unsafe.Offsetof(before.openXRCD), unsafe.Sizeof(before.openXRCD)),
			end("close_xrcd", unsafe.Offsetof(before.closeXRCD), unsafe.Sizeof(before.closeXRCD)),
			end("sz", unsafe.Offsetof(before.sz), unsafe.Sizeof(before.sz)),
		}},
		{c: "ibv_device_attr", size: unsafe.Sizeof(dev), fields: []field{
			of("fw_ver", unsafe.Offsetof(dev.fwVer), unsafe.Sizeof(dev.fwVer)),
			of("node_guid", unsafe.Offsetof(dev.nodeGUID), unsafe.Sizeof(dev.nodeGUID)),
			of("sys_image_guid", unsafe.Offsetof(dev.sysImageGUID), unsafe.Sizeof(dev.sysImageGUID)),
			of("max_mr_size", unsafe.Offsetof(dev.maxMRSize), unsafe.Sizeof(dev.maxMRSize)),
			of("vendor_id", unsafe.Offsetof(dev.vendorID), unsafe.Sizeof(dev.vendorID)),
			of("vendor_part_id", unsafe.Offsetof(dev.vendorPartID), unsafe.Sizeof(dev.vendorPartID)),
			of("hw_ver", unsafe.Offsetof(dev.hwVer), unsafe.Sizeof(dev.hwVer)),
			of("max_qp", unsafe.Offsetof(dev.maxQP), unsafe.Sizeof(dev.maxQP)),
			of("max_qp_wr", unsafe.Offsetof(dev.maxQPWR), unsafe.Sizeof(dev.maxQPWR)),
			of("device_cap_flags", unsafe.Offsetof(dev.deviceCapFlags), unsafe.Sizeof(dev.deviceCapFlags)),
			of("max_sge", unsafe.Offsetof(dev.maxSGE), unsafe.Sizeof(dev.maxSGE)),
			of("max_sge_rd", unsafe.Offsetof(dev.maxSGERead), unsafe.Sizeof(dev.maxSGERead)),
			of("max_cq", unsafe.Offsetof(dev.maxCQ), unsafe.Sizeof(dev.maxCQ)),
			of("max_cqe", unsafe.Offsetof(dev.maxCQE), unsafe.Sizeof(dev.maxCQE)),
			of("max_mr", unsafe.Offsetof(dev.maxMR), unsafe.Sizeof(dev.maxMR)),
			of("max_pd", unsafe.Offsetof(dev.maxPD), unsafe.Sizeof(dev.maxPD)),
			of("max_qp_rd_atom", unsafe.Offsetof(dev.maxQPRdAtom), unsafe.Sizeof(dev.maxQPRdAtom)),
			of("max_qp_init_rd_atom", unsafe.Offsetof(dev.maxQPInitRdAtom), unsafe.Sizeof(dev.maxQPInitRdAtom)),
			of("atomic_cap", unsafe.Offsetof(dev.atomicCap), unsafe.Sizeof(dev.atomicCap)),
			of("max_mw", unsafe.Offsetof(dev.maxMW), unsafe.Sizeof(dev.maxMW)),
			of("max_mcast_grp", unsafe.Offsetof(dev.maxMcastGrp), unsafe.Sizeof(dev.maxMcastGrp)),
			of("max_ah", unsafe.Offsetof(dev.maxAH), unsafe.Sizeof(dev.maxAH)),
			of("max_srq", unsafe.Offsetof(dev.maxSRQ), unsafe.Sizeof(dev.maxSRQ)),
			of("max_srq_wr", unsafe.Offsetof(dev.maxSRQWR), unsafe.Sizeof(dev.maxSRQWR)),
			of("max_srq_sge", unsafe.Offsetof(dev.maxSRQSGE), unsafe.Sizeof(dev.maxSRQSGE)),
			of("local_ca_ack_delay", unsafe.Offsetof(dev.localCAAckDelay), unsafe.Sizeof(dev.localCAAckDelay)),
			of("phys_port_cnt", unsafe.Offsetof(dev.physPortCnt), unsafe.Sizeof(dev.physPortCnt)),
		}},
		{c: "ibv_device_attr_ex", size: unsafe.Sizeof(more), fields: []field{
			of("odp_caps.general_caps", unsafe.Offsetof(more.odp)+unsafe.Offsetof(more.odp.general), unsafe.Sizeof(more.odp.general)),
			of("odp_caps.per_transport_caps.rc_odp_caps", unsafe.Offsetof(more.odp)+unsafe.Offsetof(more.odp.rc), unsafe.Sizeof(more.odp.rc)),
			of("odp_caps.per_transport_caps.uc_odp_caps", unsafe.Offsetof(more.odp)+unsafe.Offsetof(more.odp.uc), unsafe.Sizeof(more.odp.uc)),
			of("odp_caps.per_transport_caps.ud_odp_caps", unsafe.Offsetof(more.odp)+unsafe.Offsetof(more.odp.ud), unsafe.Sizeof(more.odp.ud)),
			of("completion_timestamp_mask", unsafe.Offsetof(more.timestampMask), unsafe.Sizeof(more.timestampMask)),
			of("hca_core_clock", unsafe.Offsetof(more.hcaCoreClock), unsafe.Sizeof(more.hcaCoreClock)),
			of("cq_mod_caps.max_cq_count", unsafe.Offsetof(more.maxCQCount), unsafe.Sizeof(more.maxCQCount)),
			of("cq_mod_caps.max_cq_period", unsafe.Offsetof(more.maxCQPeriod), unsafe.Sizeof(more.maxCQPeriod)),
			of("max_dm_size", unsafe.Offsetof(more.maxDMSize), unsafe.Sizeof(more.maxDMSize)),
			of("xrc_odp_caps", unsafe.Offsetof(more.xrcODP), unsafe.Sizeof(more.xrcODP)),
		}},
		{c: "ibv_alloc_dm_attr", size: unsafe.Sizeof(dmAttr), fields: []field{
			of("length", unsafe.Offsetof(dmAttr.length), unsafe.Sizeof(dmAttr.length)),
		}},
		{c: "ibv_dm", size: unsafe.Sizeof(dm), fields: []field{
			of("context", unsafe.Offsetof(dm.context), unsafe.Sizeof(dm.context)),
			of("memcpy_to_dm", unsafe.Offsetof(dm.memcpyTo), unsafe.Sizeof(dm.memcpyTo)),
			of("memcpy_from_dm", unsafe.Offsetof(dm.memcpyFrom), unsafe.Sizeof(dm.memcpyFrom)),
		}},
		// later ones have active_speed_ex behind it
		{c: "ibv_port_attr", part: true, fields: []field{
			of("state", unsafe.Offsetof(port.state), unsafe.Sizeof(port.state)),
			of("max_mtu", unsafe.Offsetof(port.maxMTU), unsafe.Sizeof(port.maxMTU)),
			of("active_mtu", unsafe.Offsetof(port.activeMTU), unsafe.Sizeof(port.activeMTU)),
			of("gid_tbl_len", unsafe.Offsetof(port.gidTblLen), unsafe.Sizeof(port.gidTblLen)),
			of("max_msg_sz", unsafe.Offsetof(port.maxMsgSize), unsafe.Sizeof(port.maxMsgSize)),
			of("pkey_tbl_len", unsafe.Offsetof(port.pkeyTblLen), unsafe.Sizeof(port.pkeyTblLen)),
			of("lid", unsafe.Offsetof(port.lid), unsafe.Sizeof(port.lid)),
			of("sm_lid", unsafe.Offsetof(port.smLID), unsafe.Sizeof(port.smLID)),
			of("lmc", unsafe.Offsetof(port.lmc), unsafe.Sizeof(port.lmc)),
			of("active_width", unsafe.Offsetof(port.activeWidth), unsafe.Sizeof(port.activeWidth)),
			of("active_speed", unsafe.Offsetof(port.activeSpeed), unsafe.Sizeof(port.activeSpeed)),
			of("phys_state", unsafe.Offsetof(port.physState), unsafe.Sizeof(port.physState)),
			of("link_layer", unsafe.Offsetof(port.linkLayer), unsafe.Sizeof(port.linkLayer)),
		}},
		{c: "ibv_gid_entry", size: unsafe.Sizeof(gid), fields: []field{
			of("gid", unsafe.Offsetof(gid.gid), unsafe.Sizeof(gid.gid)),
			of("gid_index", unsafe.Offsetof(gid.index), unsafe.Sizeof(gid.index)),
			of("port_num", unsafe.Offsetof(gid.port), unsafe.Sizeof(gid.port)),
			of("gid_type", unsafe.Offsetof(gid.typ), unsafe.Sizeof(gid.typ)),
			of("ndev_ifindex", unsafe.Offsetof(gid.ifindex), unsafe.Sizeof(gid.ifindex)),
		}},
		{c: "ibv_comp_channel", size: unsafe.Sizeof(channel), fields: []field{
			of("context", unsafe.Offsetof(channel.context), unsafe.Sizeof(channel.context)),
			of("fd", unsafe.Offsetof(channel.fd), unsafe.Sizeof(channel.fd)),
		}},
		{c: "ibv_cq", part: true, fields: []field{
			of("context", unsafe.Offsetof(cq.context), unsafe.Sizeof(cq.context)),
			of("channel", unsafe.Offsetof(cq.channel), unsafe.Sizeof(cq.channel)),
			of("cqe", unsafe.Offsetof(cq.cqe), unsafe.Sizeof(cq.cqe)),
		}},
		{c: "ibv_cq_init_attr_ex", size: unsafe.Sizeof(cqInit), fields: []field{
			of("cqe", unsafe.Offsetof(cqInit.cqe), unsafe.Sizeof(cqInit.cqe)),
			of("channel", unsafe.Offsetof(cqInit.channel), unsafe.Sizeof(cqInit.channel)),
			of("comp_vector", unsafe.Offsetof(cqInit.compVector), unsafe.Sizeof(cqInit.compVector)),
			of("wc_flags", unsafe.Offsetof(cqInit.wcFlags), unsafe.Sizeof(cqInit.wcFlags)),
			of("comp_mask", unsafe.Offsetof(cqInit.compMask), unsafe.Sizeof(cqInit.compMask)),
			of("flags", unsafe.Offsetof(cqInit.flags), unsafe.Sizeof(cqInit.flags)),
		}},
		{c: "ibv_cq_ex", part: true, fields: []field{
			of("status", unsafe.Offsetof(cqEx.status), unsafe.Sizeof(cqEx.status)),
			of("wr_id", unsafe.Offsetof(cqEx.wrID), unsafe.Sizeof(cqEx.wrID)),
			of("start_poll", unsafe.Offsetof(cqEx.startPoll), unsafe.Sizeof(cqEx.startPoll)),
			of("next_poll", unsafe.Offsetof(cqEx.nextPoll), unsafe.Sizeof(cqEx.nextPoll)),
			of("end_poll", unsafe.Offsetof(cqEx.endPoll), unsafe.Sizeof(cqEx.endPoll)),
			of("read_opcode", unsafe.Offsetof(cqEx.readOpcode), unsafe.Sizeof(cqEx.readOpcode)),
			of("read_vendor_err", unsafe.Offsetof(cqEx.readVendorErr), unsafe.Sizeof(cqEx.readVendorErr)),
			of("read_byte_len", unsafe.Offsetof(cqEx.readByteLen), unsafe.Sizeof(cqEx.readByteLen)),
			of("read_imm_data", unsafe.Offsetof(cqEx.readImm), unsafe.Sizeof(cqEx.readImm)),
			of("read_qp_num", unsafe.Offsetof(cqEx.readQPNum), unsafe.Sizeof(cqEx.readQPNum)),
			of("read_src_qp", unsafe.Offsetof(cqEx.readSrcQP), unsafe.Sizeof(cqEx.readSrcQP)),
			of("read_wc_flags", unsafe.Offsetof(cqEx.readWCFlags), unsafe.Sizeof(cqEx.readWCFlags)),
			of("read_slid", unsafe.Offsetof(cqEx.readSLID), unsafe.Sizeof(cqEx.readSLID)),
			of("read_sl", unsafe.Offsetof(cqEx.readSL), unsafe.Sizeof(cqEx.readSL)),
			of("read_dlid_path_bits", unsafe.Offsetof(cqEx.readDLIDPathBits), unsafe.Sizeof(cqEx.readDLIDPathBits)),
			of("read_completion_ts", unsafe.Offsetof(cqEx.readTimestamp), unsafe.Sizeof(cqEx.readTimestamp)),
			of("read_completion_wallclock_ns", unsafe.Offsetof(cqEx.readWallTime), unsafe.Sizeof(cqEx.readWallTime)),
		}},
		{c: "ibv_poll_cq_attr", size: unsafe.Sizeof(poll)},
		{c: "ibv_modify_cq_attr", size: unsafe.Sizeof(cqAttr), fields: []field{
			of("attr_mask", unsafe.Offsetof(cqAttr.attrMask), unsafe.Sizeof(cqAttr.attrMask)),
			of("moderate.cq_count", unsafe.Offsetof(cqAttr.count), unsafe.Sizeof(cqAttr.count)),
			of("moderate.cq_period", unsafe.Offsetof(cqAttr.period), unsafe.Sizeof(cqAttr.period)),
		}},
		{c: "ibv_values_ex", size: unsafe.Sizeof(values), fields: []field{
			of("comp_mask", unsafe.Offsetof(values.compMask), unsafe.Sizeof(values.compMask)),
			of("raw_clock.tv_nsec", unsafe.Offsetof(values.ticks), unsafe.Sizeof(values.ticks)),
		}},
		{c: "ibv_mw", size: unsafe.Sizeof(mw), fields: []field{
			of("context", unsafe.Offsetof(mw.context), unsafe.Sizeof(mw.context)),
			of("pd", unsafe.Offsetof(mw.pd), unsafe.Sizeof(mw.pd)),
			of("rkey", unsafe.Offsetof(mw.rkey), unsafe.Sizeof(mw.rkey)),
			of("type", unsafe.Offsetof(mw.typ), unsafe.Sizeof(mw.typ)),
		}},
		{c: "ibv_mw_bind_info", size: unsafe.Sizeof(info), fields: []field{
			of("mr", unsafe.Offsetof(info.mr), unsafe.Sizeof(info.mr)),
			of("addr", unsafe.Offsetof(info.addr), unsafe.Sizeof(info.addr)),
			of("length", unsafe.Offsetof(info.length), unsafe.Sizeof(info.length)),
			of("mw_access_flags", unsafe.Offsetof(info.access), unsafe.Sizeof(info.access)),
		}},
		{c: "ibv_mw_bind", size: unsafe.Sizeof(bind), fields: []field{
			of("wr_id", unsafe.Offsetof(bind.wrID), unsafe.Sizeof(bind.wrID)),
			of("send_flags", unsafe.Offsetof(bind.sendFlags), unsafe.Sizeof(bind.sendFlags)),
			of("bind_info", unsafe.Offsetof(bind.info), unsafe.Sizeof(bind.info)),
		}},
		{c: "ibv_pd", part: true, fields: []field{
			of("context", unsafe.Offsetof(pd.context), unsafe.Sizeof(pd.context)),
		}},
		{c: "ibv_td_init_attr", size: unsafe.Sizeof(tdInit)},
		{c: "ibv_td", size: unsafe.Sizeof(td), fields: []field{
			of("context", unsafe.Offsetof(td.context), unsafe.Sizeof(td.context)),
		}},
		{c: "ibv_parent_domain_init_attr", size: unsafe.Sizeof(parent), fields: []field{
			of("pd", unsafe.Offsetof(parent.pd), unsafe.Sizeof(parent.pd)),
			of("td", unsafe.Offsetof(parent.td), unsafe.Sizeof(parent.td)),
		}},
		{c: "ibv_mr", size: unsafe.Sizeof(mr), fields: []field{
			of("context", unsafe.Offsetof(mr.context), unsafe.Sizeof(mr.context)),
			of("pd", unsafe.Offsetof(mr.pd), unsafe.Sizeof(mr.pd)),
			of("length", unsafe.Offsetof(mr.length), unsafe.Sizeof(mr.length)),
			of("lkey", unsafe.Offsetof(mr.lkey), unsafe.Sizeof(mr.lkey)),
			of("rkey", unsafe.Offsetof(mr.rkey), unsafe.Sizeof(mr.rkey)),
		}},
		{c: "ibv_qp_cap", size: unsafe.Sizeof(qpCap), fields: []field{
			of("max_send_wr", unsafe.Offsetof(qpCap.maxSendWR), unsafe.Sizeof(qpCap.maxSendWR)),
			of("max_recv_wr", unsafe.Offsetof(qpCap.maxRecvWR), unsafe.Sizeof(qpCap.maxRecvWR)),
			of("max_send_sge", unsafe.Offsetof(qpCap.maxSendSGE), unsafe.Sizeof(qpCap.maxSendSGE)),
			of("max_recv_sge", unsafe.Offsetof(qpCap.maxRecvSGE), unsafe.Sizeof(qpCap.maxRecvSGE)),
			of("max_inline_data", unsafe.Offsetof(qpCap.maxInline), unsafe.Sizeof(qpCap.maxInline)),
		}},
		{c: "ibv_qp_init_attr", size: unsafe.Sizeof(init), fields: []field{
			of("send_cq", unsafe.Offsetof(init.sendCQ), unsafe.Sizeof(init.sendCQ)),
			of("recv_cq", unsafe.Offsetof(init.recvCQ), unsafe.Sizeof(init.recvCQ)),
			of("srq", unsafe.Offsetof(init.srq), unsafe.Sizeof(init.srq)),
			of("cap", unsafe.Offsetof(init.cap), unsafe.Sizeof(init.cap)),
			of("qp_type", unsafe.Offsetof(init.qpType), unsafe.Sizeof(init.qpType)),
			of("sq_sig_all", unsafe.Offsetof(init.sqSigAll), unsafe.Sizeof(init.sqSigAll)),
		}},
		{c: "ibv_qp_init_attr_ex", size: unsafe.Sizeof(initEx), fields: []field{
			of("qp_type", unsafe.Offsetof(initEx.qpType), unsafe.Sizeof(initEx.qpType)),
			of("comp_mask", unsafe.Offsetof(initEx.compMask), unsafe.Sizeof(initEx.compMask)),
			of("xrcd", unsafe.Offsetof(initEx.xrcd), unsafe.Sizeof(initEx.xrcd)),
		}},
		{c: "ibv_qp_open_attr", size: unsafe.Sizeof(open), fields: []field{
			of("comp_mask", unsafe.Offsetof(open.compMask), unsafe.Sizeof(open.compMask)),
			of("qp_num", unsafe.Offsetof(open.qpNum), unsafe.Sizeof(open.qpNum)),
			of("xrcd", unsafe.Offsetof(open.xrcd), unsafe.Sizeof(open.xrcd)),
			of("qp_type", unsafe.Offsetof(open.qpType), unsafe.Sizeof(open.qpType)),
		}},
		{c: "ibv_xrcd_init_attr", size: unsafe.Sizeof(domain), fields: []field{
			of("comp_mask", unsafe.Offsetof(domain.compMask), unsafe.Sizeof(domain.compMask)),
			of("fd", unsafe.Offsetof(domain.fd), unsafe.Sizeof(domain.fd)),
			of("oflags", unsafe.Offsetof(domain.oflags), unsafe.Sizeof(domain.oflags)),
		}},
		{c: "ibv_xrcd", size: unsafe.Sizeof(xrcd), fields: []field{
			of("context", unsafe.Offsetof(xrcd.context), unsafe.Sizeof(xrcd.context)),
		}},
		{c: "ibv_srq_init_attr_ex", size: unsafe.Sizeof(srqEx), fields: []field{
			of("attr", unsafe.Offsetof(srqEx.attr), unsafe.Sizeof(srqEx.attr)),
			of("comp_mask", unsafe.Offsetof(srqEx.compMask), unsafe.Sizeof(srqEx.compMask)),
			of("srq_type", unsafe.Offsetof(srqEx.srqType), unsafe.Sizeof(srqEx.srqType)),
			of("pd", unsafe.Offsetof(srqEx.pd), unsafe.Sizeof(srqEx.pd)),
			of("xrcd", unsafe.Offsetof(srqEx.xrcd), unsafe.Sizeof(srqEx.xrcd)),
			of("cq", unsafe.Offsetof(srqEx.cq), unsafe.Sizeof(srqEx.cq)),
		}},
		{c: "ibv_qp", part: true, fields: []field{
			of("context", unsafe.Offsetof(qp.context), unsafe.Sizeof(qp.context)),
			of("pd", unsafe.Offsetof(qp.pd), unsafe.Sizeof(qp.pd)),
			of("send_cq", unsafe.Offsetof(qp.sendCQ), unsafe.Sizeof(qp.sendCQ)),
			of("qp_num", unsafe.Offsetof(qp.qpNum), unsafe.Sizeof(qp.qpNum)),
			of("qp_type", unsafe.Offsetof(qp.qpType), unsafe.Sizeof(qp.qpType)),
		}},
		{c: "ibv_global_route", size: unsafe.Sizeof(route), fields: []field{
			of("dgid", unsafe.Offsetof(route.dgid), unsafe.Sizeof(route.dgid)),
			of("flow_label", unsafe.Offsetof(route.flowLabel), unsafe.Sizeof(route.flowLabel)),
			of("sgid_index", unsafe.Offsetof(route.sgidIndex), unsafe.Sizeof(route.sgidIndex)),
			of("hop_limit", unsafe.Offsetof(route.hopLimit), unsafe.Sizeof(route.hopLimit)),
			of("traffic_class", unsafe.Offsetof(route.trafficClass), unsafe.Sizeof(route.trafficClass)),
		}},
		{c: "ibv_ah_attr", size: unsafe.Sizeof(ah), fields: []field{
			of("grh", unsafe.Offsetof(ah.grh), unsafe.Sizeof(ah.grh)),
			of("dlid", unsafe.Offsetof(ah.dlid), unsafe.Sizeof(ah.dlid)),
			of("sl", unsafe.Offsetof(ah.sl), unsafe.Sizeof(ah.sl)),
			of("src_path_bits", unsafe.Offsetof(ah.srcPathBits), unsafe.Sizeof(ah.srcPathBits)),
			of("static_rate", unsafe.Offsetof(ah.staticRate), unsafe.Sizeof(ah.staticRate)),
			of("is_global", unsafe.Offsetof(ah.isGlobal), unsafe.Sizeof(ah.isGlobal)),
			of("port_num", unsafe.Offsetof(ah.portNum), unsafe.Sizeof(ah.portNum)),
		}},
		{c: "ibv_qp_attr", size: unsafe.Sizeof(attr), fields: []field{
			of("qp_state", unsafe.Offsetof(attr.qpState), unsafe.Sizeof(attr.qpState)),
			of("cur_qp_state", unsafe.Offsetof(attr.curQPState), unsafe.Sizeof(attr.curQPState)),
			of("path_mtu", unsafe.Offsetof(attr.pathMTU), unsafe.Sizeof(attr.pathMTU)),
			of("path_mig_state", unsafe.Offsetof(attr.pathMigState), unsafe.Sizeof(attr.pathMigState)),
			of("qkey", unsafe.Offsetof(attr.qkey), unsafe.Sizeof(attr.qkey)),
			of("rq_psn", unsafe.Offsetof(attr.rqPSN), unsafe.Sizeof(attr.rqPSN)),
			of("sq_psn", unsafe.Offsetof(attr.sqPSN), unsafe.Sizeof(attr.sqPSN)),
			of("dest_qp_num", unsafe.Offsetof(attr.destQPNum), unsafe.Sizeof(attr.destQPNum)),
			of("qp_access_flags", unsafe.Offsetof(attr.accessFlags), unsafe.Sizeof(attr.accessFlags)),
			of("cap", unsafe.Offsetof(attr.cap), unsafe.Sizeof(attr.cap)),
			of("ah_attr", unsafe.Offsetof(attr.ah), unsafe.Sizeof(attr.ah)),
			of("alt_ah_attr", unsafe.Offsetof(attr.altAH), unsafe.Sizeof(attr.altAH)),
			of("pkey_index", unsafe.Offsetof(attr.pkeyIndex), unsafe.Sizeof(attr.pkeyIndex)),
			of("alt_pkey_index", unsafe.Offsetof(attr.altPKeyIndex), unsafe.Sizeof(attr.altPKeyIndex)),
			of("en_sqd_async_notify", unsafe.Offsetof(attr.enSQDAsyncNotify), unsafe.Sizeof(attr.enSQDAsyncNotify)),
			of("sq_draining", unsafe.Offsetof(attr.sqDraining), unsafe.Sizeof(attr.sqDraining)),
			of("max_rd_atomic", unsafe.Offsetof(attr.maxRdAtomic), unsafe.Sizeof(attr.maxRdAtomic)),
			of("max_dest_rd_atomic", unsafe.Offsetof(attr.maxDestRdAtomic), unsafe.Sizeof(attr.maxDestRdAtomic)),
			of("min_rnr_timer", unsafe.Offsetof(attr.minRNRTimer), unsafe.Sizeof(attr.minRNRTimer)),
			of("port_num", unsafe.Offsetof(attr.portNum), unsafe.Sizeof(attr.portNum)),
			of("timeout", unsafe.Offsetof(attr.timeout), unsafe.Sizeof(attr.timeout)),
			of("retry_cnt", unsafe.Offsetof(attr.retryCnt), unsafe.Sizeof(attr.retryCnt)),
			of("rnr_retry", unsafe.Offsetof(attr.rnrRetry), unsafe.Sizeof(attr.rnrRetry)),
			of("alt_port_num", unsafe.Offsetof(attr.altPortNum), unsafe.Sizeof(attr.altPortNum)),
			of("alt_timeout", unsafe.Offsetof(attr.altTimeout), unsafe.Sizeof(attr.altTimeout)),
			of("rate_limit", unsafe.Offsetof(attr.rateLimit), unsafe.Sizeof(attr.rateLimit)),
		}},
		{c: "ibv_srq_attr", size: unsafe.Sizeof(srqAttr), fields: []field{
			of("max_wr", unsafe.Offsetof(srqAttr.maxWR), unsafe.Sizeof(srqAttr.maxWR)),
			of("max_sge", unsafe.Offsetof(srqAttr.maxSGE), unsafe.Sizeof(srqAttr.maxSGE)),
			of("srq_limit", unsafe.Offsetof(srqAttr.limit), unsafe.Sizeof(srqAttr.limit)),
		}},
		{c: "ibv_srq_init_attr", size: unsafe.Sizeof(srq), fields: []field{
			of("attr", unsafe.Offsetof(srq.attr), unsafe.Sizeof(srq.attr)),
		}},
		{c: "ibv_sge", size: unsafe.Sizeof(sge), fields: []field{
			of("addr", unsafe.Offsetof(sge.addr), unsafe.Sizeof(sge.addr)),
			of("length", unsafe.Offsetof(sge.length), unsafe.Sizeof(sge.length)),
			of("lkey", unsafe.Offsetof(sge.lkey), unsafe.Sizeof(sge.lkey)),
		}},
		{c: "ibv_send_wr", size: unsafe.Sizeof(send), fields: []field{
			of("wr_id", unsafe.Offsetof(send.wrID), unsafe.Sizeof(send.wrID)),
			of("next", unsafe.Offsetof(send.next), unsafe.Sizeof(send.next)),
			of("sg_list", unsafe.Offsetof(send.sgList), unsafe.Sizeof(send.sgList)),
			of("num_sge", unsafe.Offsetof(send.numSGE), unsafe.Sizeof(send.numSGE)),
			of("opcode", unsafe.Offsetof(send.opcode), unsafe.Sizeof(send.opcode)),
			of("send_flags", unsafe.Offsetof(send.sendFlags), unsafe.Sizeof(send.sendFlags)),
			of("imm_data", unsafe.Offsetof(send.imm), unsafe.Sizeof(send.imm)),
			of("invalidate_rkey", unsafe.Offsetof(send.imm), unsafe.Sizeof(send.imm)),
			of("wr", union, unsafe.Sizeof(send.wr)),
			of("qp_type.xrc.remote_srqn", unsafe.Offsetof(send.remoteSRQ), unsafe.Sizeof(send.remoteSRQ)),
			of("bind_mw", unsafe.Offsetof(send.bind), unsafe.Sizeof(send.bind)),
			of("bind_mw.mw", unsafe.Offsetof(send.bind)+unsafe.Offsetof(send.bind.mw), unsafe.Sizeof(send.bind.mw)),
			of("bind_mw.rkey", unsafe.Offsetof(send.bind)+unsafe.Offsetof(send.bind.rkey), unsafe.Sizeof(send.bind.rkey)),
			of("bind_mw.bind_info", unsafe.Offsetof(send.bind)+unsafe.Offsetof(send.bind.info), unsafe.Sizeof(send.bind.info)),
			// As remote, atomic and datagram fill it.
			of("wr.rdma.remote_addr", union, 8), of("wr.rdma.rkey", union+8, 4),
			of("wr.atomic.remote_addr", union, 8), of("wr.atomic.compare_add", union+8, 8),
			of("wr.atomic.swap", union+16, 8), of("wr.atomic.rkey", union+24, 4),
			of("wr.ud.ah", union, 8), of("wr.ud.remote_qpn", union+8, 4), of("wr.ud.remote_qkey", union+12, 4),
		}},
		{c: "ibv_recv_wr", size: unsafe.Sizeof(recv), fields: []field{
			of("wr_id", unsafe.Offsetof(recv.wrID), unsafe.Sizeof(recv.wrID)),
			of("next", unsafe.Offsetof(recv.next), unsafe.Sizeof(recv.next)),
			of("sg_list", unsafe.Offsetof(recv.sgList), unsafe.Sizeof(recv.sgList)),
			of("num_sge", unsafe.Offsetof(recv.numSGE), unsafe.Sizeof(recv.numSGE)),
		}},
		{c: "ibv_wc", size: unsafe.Sizeof(wc), fields: []field{
			of("wr_id", unsafe.Offsetof(wc.wrID), unsafe.Sizeof(wc.wrID)),
			of("status", unsafe.Offsetof(wc.status), unsafe.Sizeof(wc.status)),
			of("opcode", unsafe.Offsetof(wc.opcode), unsafe.Sizeof(wc.opcode)),
			of("vendor_err", unsafe.Offsetof(wc.vendorErr), unsafe.Sizeof(wc.vendorErr)),
			of("byte_len", unsafe.Offsetof(wc.byteLen), unsafe.Sizeof(wc.byteLen)),
			of("imm_data", unsafe.Offsetof(wc.imm), unsafe.Sizeof(wc.imm)),
			of("qp_num", unsafe.Offsetof(wc.qpNum), unsafe.Sizeof(wc.qpNum)),
			of("src_qp", unsafe.Offsetof(wc.srcQP), unsafe.Sizeof(wc.srcQP)),
			of("wc_flags", unsafe.Offsetof(wc.wcFlags), unsafe.Sizeof(wc.wcFlags)),
			of("slid", unsafe.Offsetof(wc.slid), unsafe.Sizeof(wc.slid)),
			of("sl", unsafe.Offsetof(wc.sl), unsafe.Sizeof(wc.sl)),
			of("dlid_path_bits", unsafe.Offsetof(wc.dlidPathBits), unsafe.Sizeof(wc.dlidPathBits)),
		}},
		{c: "ibv_async_event", size: unsafe.Sizeof(event), fields: []field{
			of("element.cq", unsafe.Offsetof(event.element), unsafe.Sizeof(event.element)),
			of("event_type", unsafe.Offsetof(event.eventType), unsafe.Sizeof(event.eventType)),
		}},
	}
}

// A C compiler makes the same structures of infiniband/verbs.h. It is for the processor that the
// test was built for.
func TestStructuresAreThoseOfTheHeader(t *testing.T) {
	root := os.Getenv("RAMJET_MODEL_ROOT") // where CI has unpacked it
	include := root + "/usr/include"
	_, err := os.Stat(include + "/infiniband/verbs.h")
	if cc, ccErr := exec.LookPath("gcc"); err != nil || ccErr != nil {
		require.Empty(t, root, "gcc, or the header there: %v, %v", ccErr, err)
		t.Skipf("gcc (%s) and infiniband/verbs.h (%v) are not both there: apt-get install gcc libc6-dev libibverbs-dev", cc, err)
	}
	machine, err := exec.Command("gcc", "-dumpmachine").Output()
	require.NoError(t, err)
	if want := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]; !strings.HasPrefix(string(machine), want) {
		t.Skipf("gcc is for %s", bytes.TrimSpace(machine))
	}
	var source, want strings.Builder
	source.WriteString("#include <infiniband/verbs.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void) {\n")
	for _, l := range layouts() {
		if !l.part {
			fmt.Fprintf(&source, "printf(\"%s: %%zu\\n\", sizeof(struct %s));\n", l.c, l.c)
			fmt.Fprintf(&want, "%s: %d\n", l.c, l.size)
		}
		for _, f := range l.fields {
			offset := fmt.Sprintf("offsetof(struct %s, %s)", l.c, f.c)
			if l.before != "" {
				offset = fmt.Sprintf("offsetof(struct %s, %s) - %s", l.c, l.before, offset)
			}
			fmt.Fprintf(&source, "printf(\"%s.%s: %%zu, %%zu\\n\", %s, sizeof(((struct %s *)0)->%s));\n", l.c, f.c, offset, l.c, f.c)
			fmt.Fprintf(&want, "%s.%s: %d, %d\n", l.c, f.c, f.at, f.size)
		}
	}
	source.WriteString("return 0;\n}\n")
	program := filepath.Join(t.TempDir(), "layout")
	require.NoError(t, os.WriteFile(program+".c", []byte(source.String()), 0o600))
	out, err := exec.Command("gcc", "-I", include, "-o", program, program+".c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	got, err := exec.Command(program).Output()
	require.NoError(t, err)
	require.Equal(t, want.String(), string(got))
}
