package kernelcm

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestCommandLayoutsAreThoseOfC compares sizes and offsets with what a C
// compiler makes of rdma/rdma_user_cm.h and rdma/ib_user_verbs.h on x86-64.
func TestCommandLayoutsAreThoseOfC(t *testing.T) {
	var (
		header    ucmHeader
		createID  ucmCreateIDBody
		destroyID ucmDestroyIDBody
		bind      ucmBindBody
		resolve   ucmResolveAddrBody
		route     ucmResolveRouteBody
		query     ucmQueryBody
		addr      ucmQueryAddrResponse
		param     ucmConnParam
		connect   ucmConnectBody
		listen    ucmListenBody
		accept    ucmAcceptBody
		reject    ucmRejectBody
		hangUp    ucmDisconnectBody
		initQP    ucmInitQPAttrBody
		getEvent  ucmGetEventBody
		option    ucmSetOptionBody
		ah        ucmAHAttr
		qp        ucmQPAttr
		join      ucmJoinBody
	)
	for _, c := range []struct {
		what      string
		got, want uintptr
	}{
		{"cmd_hdr", unsafe.Sizeof(header), 8},
		{"cmd_hdr.cmd", unsafe.Offsetof(header.cmd), 0},
		{"cmd_hdr.in", unsafe.Offsetof(header.in), 4},
		{"cmd_hdr.out", unsafe.Offsetof(header.out), 6},
		{"create_id", unsafe.Sizeof(createID), 24},
		{"create_id.uid", unsafe.Offsetof(createID.uid), 0},
		{"create_id.response", unsafe.Offsetof(createID.response), 8},
		{"create_id.ps", unsafe.Offsetof(createID.space), 16},
		{"create_id.qp_type", unsafe.Offsetof(createID.qpType), 18},
		{"destroy_id", unsafe.Sizeof(destroyID), 16},
		{"destroy_id.id", unsafe.Offsetof(destroyID.id), 8},
		{"bind", unsafe.Sizeof(bind), 136},
		{"bind.addr_size", unsafe.Offsetof(bind.addrSize), 4},
		{"bind.addr", unsafe.Offsetof(bind.addr), 8},
		{"resolve_addr", unsafe.Sizeof(resolve), 272},
		{"resolve_addr.timeout_ms", unsafe.Offsetof(resolve.timeoutMS), 4},
		{"resolve_addr.src_size", unsafe.Offsetof(resolve.srcSize), 8},
		{"resolve_addr.dst_size", unsafe.Offsetof(resolve.dstSize), 10},
		{"resolve_addr.src_addr", unsafe.Offsetof(resolve.src), 16},
		{"resolve_addr.dst_addr", unsafe.Offsetof(resolve.dst), 144},
		{"resolve_route", unsafe.Sizeof(route), 8},
		{"resolve_route.timeout_ms", unsafe.Offsetof(route.timeoutMS), 4},
		{"query", unsafe.Sizeof(query), 16},
		{"query.id", unsafe.Offsetof(query.id), 8},
		{"query.option", unsafe.Offsetof(query.option), 12},
		{"query_addr_resp", unsafe.Sizeof(addr), 280},
		{"query_addr_resp.port_num", unsafe.Offsetof(addr.port), 8},
		{"query_addr_resp.pkey", unsafe.Offsetof(addr.pkey), 10},
		{"query_addr_resp.src_size", unsafe.Offsetof(addr.srcSize), 12},
		{"query_addr_resp.dst_size", unsafe.Offsetof(addr.dstSize), 14},
		{"query_addr_resp.src_addr", unsafe.Offsetof(addr.src), 16},
		{"query_addr_resp.dst_addr", unsafe.Offsetof(addr.dst), 144},
		{"query_addr_resp.ibdev_index", unsafe.Offsetof(addr.deviceIndex), 272},
		{"conn_param", unsafe.Sizeof(param), 272},
		{"conn_param.qkey", unsafe.Offsetof(param.qkey), 4},
		{"conn_param.private_data", unsafe.Offsetof(param.privateData), 8},
		{"conn_param.private_data_len", unsafe.Offsetof(param.privateDataLen), 264},
		{"conn_param.srq", unsafe.Offsetof(param.srq), 265},
		{"conn_param.responder_resources", unsafe.Offsetof(param.responderResources), 266},
		{"conn_param.initiator_depth", unsafe.Offsetof(param.initiatorDepth), 267},
		{"conn_param.flow_control", unsafe.Offsetof(param.flowControl), 268},
		{"conn_param.retry_count", unsafe.Offsetof(param.retryCount), 269},
		{"conn_param.rnr_retry_count", unsafe.Offsetof(param.rnrRetryCount), 270},
		{"conn_param.valid", unsafe.Offsetof(param.valid), 271},
		{"connect", unsafe.Sizeof(connect), 288},
		{"connect.id", unsafe.Offsetof(connect.id), 272},
		{"connect.ece", unsafe.Offsetof(connect.ece), 280},
		{"listen", unsafe.Sizeof(listen), 8},
		{"listen.backlog", unsafe.Offsetof(listen.backlog), 4},
		{"accept", unsafe.Sizeof(accept), 296},
		{"accept.conn_param", unsafe.Offsetof(accept.param), 8},
		{"accept.id", unsafe.Offsetof(accept.id), 280},
		{"accept.ece", unsafe.Offsetof(accept.ece), 288},
		{"reject", unsafe.Sizeof(reject), 264},
		{"reject.private_data_len", unsafe.Offsetof(reject.privateDataLen), 4},
		{"reject.reason", unsafe.Offsetof(reject.reason), 5},
		{"reject.private_data", unsafe.Offsetof(reject.privateData), 8},
		{"disconnect", unsafe.Sizeof(hangUp), 4},
		{"init_qp_attr", unsafe.Sizeof(initQP), 16},
		{"init_qp_attr.id", unsafe.Offsetof(initQP.id), 8},
		{"init_qp_attr.qp_state", unsafe.Offsetof(initQP.state), 12},
		{"get_event", unsafe.Sizeof(getEvent), 8},
		{"set_option", unsafe.Sizeof(option), 24},
		{"set_option.id", unsafe.Offsetof(option.id), 8},
		{"set_option.level", unsafe.Offsetof(option.level), 12},
		{"set_option.optname", unsafe.Offsetof(option.name), 16},
		{"set_option.optlen", unsafe.Offsetof(option.length), 20},
		{"join_mcast", unsafe.Sizeof(join), 152},
		{"join_mcast.uid", unsafe.Offsetof(join.uid), 8},
		{"join_mcast.id", unsafe.Offsetof(join.id), 16},
		{"join_mcast.addr_size", unsafe.Offsetof(join.addrSize), 20},
		{"join_mcast.join_flags", unsafe.Offsetof(join.flags), 22},
		{"join_mcast.addr", unsafe.Offsetof(join.addr), 24},
		{"ah_attr", unsafe.Sizeof(ah), 32},
		{"ah_attr.grh.flow_label", unsafe.Offsetof(ah.flowLabel), 16},
		{"ah_attr.grh.sgid_index", unsafe.Offsetof(ah.sgidIndex), 20},
		{"ah_attr.grh.hop_limit", unsafe.Offsetof(ah.hopLimit), 21},
		{"ah_attr.grh.traffic_class", unsafe.Offsetof(ah.trafficClass), 22},
		{"ah_attr.dlid", unsafe.Offsetof(ah.dlid), 24},
		{"ah_attr.sl", unsafe.Offsetof(ah.sl), 26},
		{"ah_attr.src_path_bits", unsafe.Offsetof(ah.srcPathBits), 27},
		{"ah_attr.static_rate", unsafe.Offsetof(ah.staticRate), 28},
		{"ah_attr.is_global", unsafe.Offsetof(ah.isGlobal), 29},
		{"ah_attr.port_num", unsafe.Offsetof(ah.port), 30},
		{"qp_attr", unsafe.Sizeof(qp), 144},
		{"qp_attr.qp_state", unsafe.Offsetof(qp.state), 4},
		{"qp_attr.cur_qp_state", unsafe.Offsetof(qp.curState), 8},
		{"qp_attr.path_mtu", unsafe.Offsetof(qp.pathMTU), 12},
		{"qp_attr.path_mig_state", unsafe.Offsetof(qp.pathMigState), 16},
		{"qp_attr.qkey", unsafe.Offsetof(qp.qkey), 20},
		{"qp_attr.rq_psn", unsafe.Offsetof(qp.rqPSN), 24},
		{"qp_attr.sq_psn", unsafe.Offsetof(qp.sqPSN), 28},
		{"qp_attr.dest_qp_num", unsafe.Offsetof(qp.destQPN), 32},
		{"qp_attr.qp_access_flags", unsafe.Offsetof(qp.access), 36},
		{"qp_attr.ah_attr", unsafe.Offsetof(qp.ah), 40},
		{"qp_attr.alt_ah_attr", unsafe.Offsetof(qp.altAH), 72},
		{"qp_attr.max_send_wr", unsafe.Offsetof(qp.maxSendWR), 104},
		{"qp_attr.max_recv_wr", unsafe.Offsetof(qp.maxRecvWR), 108},
		{"qp_attr.max_send_sge", unsafe.Offsetof(qp.maxSendSGE), 112},
		{"qp_attr.max_recv_sge", unsafe.Offsetof(qp.maxRecvSGE), 116},
		{"qp_attr.max_inline_data", unsafe.Offsetof(qp.maxInline), 120},
		{"qp_attr.pkey_index", unsafe.Offsetof(qp.pkeyIndex), 124},
		{"qp_attr.alt_pkey_index", unsafe.Offsetof(qp.altPKeyIndex), 126},
		{"qp_attr.en_sqd_async_notify", unsafe.Offsetof(qp.enSQDAsyncNotify), 128},
		{"qp_attr.sq_draining", unsafe.Offsetof(qp.sqDraining), 129},
		{"qp_attr.max_rd_atomic", unsafe.Offsetof(qp.maxRdAtomic), 130},
		{"qp_attr.max_dest_rd_atomic", unsafe.Offsetof(qp.maxDestRdAtomic), 131},
		{"qp_attr.min_rnr_timer", unsafe.Offsetof(qp.minRNRTimer), 132},
		{"qp_attr.port_num", unsafe.Offsetof(qp.port), 133},
		{"qp_attr.timeout", unsafe.Offsetof(qp.timeout), 134},
		{"qp_attr.retry_cnt", unsafe.Offsetof(qp.retryCount), 135},
		{"qp_attr.rnr_retry", unsafe.Offsetof(qp.rnrRetry), 136},
		{"qp_attr.alt_port_num", unsafe.Offsetof(qp.altPort), 137},
		{"qp_attr.alt_timeout", unsafe.Offsetof(qp.altTimeout), 138},
	} {
		require.Equal(t, c.want, c.got, c.what)
	}
}
