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
// the beginning of that of C.
type layout struct {
	c      string
	size   uintptr
	part   bool
	fields []field
}

func layouts() []layout {
	var (
		context ibvContext
		dev     ibvDeviceAttr
		port    ibvPortAttr
		gid     ibvGIDEntry
		channel ibvCompChannel
		cq      ibvCQ
		mr      ibvMR
		init    ibvQPInitAttr
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
	union := unsafe.Offsetof(send.wr)
	return []layout{
		{"ibv_context", unsafe.Sizeof(context), true, []field{
			of("device", unsafe.Offsetof(context.device), unsafe.Sizeof(context.device)),
			op("poll_cq", opPollCQ), op("req_notify_cq", opReqNotifyCQ), op("post_srq_recv", opPostSRQRecv),
			op("post_send", opPostSend), op("post_recv", opPostRecv), op("_compat_async_event", contextOps-1),
			of("cmd_fd", unsafe.Offsetof(context.cmdFD), unsafe.Sizeof(context.cmdFD)),
			of("async_fd", unsafe.Offsetof(context.asyncFD), unsafe.Sizeof(context.asyncFD)),
			of("num_comp_vectors", unsafe.Offsetof(context.numCompVectors), unsafe.Sizeof(context.numCompVectors)),
		}},
		{"ibv_device_attr", unsafe.Sizeof(dev), false, []field{
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
			of("max_ah", unsafe.Offsetof(dev.maxAH), unsafe.Sizeof(dev.maxAH)),
			of("max_srq", unsafe.Offsetof(dev.maxSRQ), unsafe.Sizeof(dev.maxSRQ)),
			of("max_srq_wr", unsafe.Offsetof(dev.maxSRQWR), unsafe.Sizeof(dev.maxSRQWR)),
			of("max_srq_sge", unsafe.Offsetof(dev.maxSRQSGE), unsafe.Sizeof(dev.maxSRQSGE)),
			of("local_ca_ack_delay", unsafe.Offsetof(dev.localCAAckDelay), unsafe.Sizeof(dev.localCAAckDelay)),
			of("phys_port_cnt", unsafe.Offsetof(dev.physPortCnt), unsafe.Sizeof(dev.physPortCnt)),
		}},
		{"ibv_port_attr", unsafe.Sizeof(port), true, []field{ // later ones have active_speed_ex behind it
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
		{"ibv_gid_entry", unsafe.Sizeof(gid), false, []field{
			of("gid", unsafe.Offsetof(gid.gid), unsafe.Sizeof(gid.gid)),
			of("gid_index", unsafe.Offsetof(gid.index), unsafe.Sizeof(gid.index)),
			of("port_num", unsafe.Offsetof(gid.port), unsafe.Sizeof(gid.port)),
			of("gid_type", unsafe.Offsetof(gid.typ), unsafe.Sizeof(gid.typ)),
			of("ndev_ifindex", unsafe.Offsetof(gid.ifindex), unsafe.Sizeof(gid.ifindex)),
		}},
		{"ibv_comp_channel", unsafe.Sizeof(channel), false, []field{
			of("context", unsafe.Offsetof(channel.context), unsafe.Sizeof(channel.context)),
			of("fd", unsafe.Offsetof(channel.fd), unsafe.Sizeof(channel.fd)),
		}},
		{"ibv_cq", unsafe.Sizeof(cq), true, []field{
			of("context", unsafe.Offsetof(cq.context), unsafe.Sizeof(cq.context)),
			of("channel", unsafe.Offsetof(cq.channel), unsafe.Sizeof(cq.channel)),
			of("cqe", unsafe.Offsetof(cq.cqe), unsafe.Sizeof(cq.cqe)),
		}},
		{"ibv_mr", unsafe.Sizeof(mr), false, []field{
			of("context", unsafe.Offsetof(mr.context), unsafe.Sizeof(mr.context)),
			of("pd", unsafe.Offsetof(mr.pd), unsafe.Sizeof(mr.pd)),
			of("length", unsafe.Offsetof(mr.length), unsafe.Sizeof(mr.length)),
			of("lkey", unsafe.Offsetof(mr.lkey), unsafe.Sizeof(mr.lkey)),
			of("rkey", unsafe.Offsetof(mr.rkey), unsafe.Sizeof(mr.rkey)),
		}},
		{"ibv_qp_cap", unsafe.Sizeof(qpCap), false, []field{
			of("max_send_wr", unsafe.Offsetof(qpCap.maxSendWR), unsafe.Sizeof(qpCap.maxSendWR)),
			of("max_recv_wr", unsafe.Offsetof(qpCap.maxRecvWR), unsafe.Sizeof(qpCap.maxRecvWR)),
			of("max_send_sge", unsafe.Offsetof(qpCap.maxSendSGE), unsafe.Sizeof(qpCap.maxSendSGE)),
			of("max_recv_sge", unsafe.Offsetof(qpCap.maxRecvSGE), unsafe.Sizeof(qpCap.maxRecvSGE)),
			of("max_inline_data", unsafe.Offsetof(qpCap.maxInline), unsafe.Sizeof(qpCap.maxInline)),
		}},
		{"ibv_qp_init_attr", unsafe.Sizeof(init), false, []field{
			of("send_cq", unsafe.Offsetof(init.sendCQ), unsafe.Sizeof(init.sendCQ)),
			of("recv_cq", unsafe.Offsetof(init.recvCQ), unsafe.Sizeof(init.recvCQ)),
			of("srq", unsafe.Offsetof(init.srq), unsafe.Sizeof(init.srq)),
			of("cap", unsafe.Offsetof(init.cap), unsafe.Sizeof(init.cap)),
			of("qp_type", unsafe.Offsetof(init.qpType), unsafe.Sizeof(init.qpType)),
			of("sq_sig_all", unsafe.Offsetof(init.sqSigAll), unsafe.Sizeof(init.sqSigAll)),
		}},
		{"ibv_qp", unsafe.Sizeof(qp), true, []field{
			of("context", unsafe.Offsetof(qp.context), unsafe.Sizeof(qp.context)),
			of("pd", unsafe.Offsetof(qp.pd), unsafe.Sizeof(qp.pd)),
			of("send_cq", unsafe.Offsetof(qp.sendCQ), unsafe.Sizeof(qp.sendCQ)),
			of("qp_num", unsafe.Offsetof(qp.qpNum), unsafe.Sizeof(qp.qpNum)),
			of("qp_type", unsafe.Offsetof(qp.qpType), unsafe.Sizeof(qp.qpType)),
		}},
		{"ibv_global_route", unsafe.Sizeof(route), false, []field{
			of("dgid", unsafe.Offsetof(route.dgid), unsafe.Sizeof(route.dgid)),
			of("flow_label", unsafe.Offsetof(route.flowLabel), unsafe.Sizeof(route.flowLabel)),
			of("sgid_index", unsafe.Offsetof(route.sgidIndex), unsafe.Sizeof(route.sgidIndex)),
			of("hop_limit", unsafe.Offsetof(route.hopLimit), unsafe.Sizeof(route.hopLimit)),
			of("traffic_class", unsafe.Offsetof(route.trafficClass), unsafe.Sizeof(route.trafficClass)),
		}},
		{"ibv_ah_attr", unsafe.Sizeof(ah), false, []field{
			of("grh", unsafe.Offsetof(ah.grh), unsafe.Sizeof(ah.grh)),
			of("dlid", unsafe.Offsetof(ah.dlid), unsafe.Sizeof(ah.dlid)),
			of("sl", unsafe.Offsetof(ah.sl), unsafe.Sizeof(ah.sl)),
			of("src_path_bits", unsafe.Offsetof(ah.srcPathBits), unsafe.Sizeof(ah.srcPathBits)),
			of("static_rate", unsafe.Offsetof(ah.staticRate), unsafe.Sizeof(ah.staticRate)),
			of("is_global", unsafe.Offsetof(ah.isGlobal), unsafe.Sizeof(ah.isGlobal)),
			of("port_num", unsafe.Offsetof(ah.portNum), unsafe.Sizeof(ah.portNum)),
		}},
		{"ibv_qp_attr", unsafe.Sizeof(attr), false, []field{
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
		{"ibv_srq_attr", unsafe.Sizeof(srqAttr), false, []field{
			of("max_wr", unsafe.Offsetof(srqAttr.maxWR), unsafe.Sizeof(srqAttr.maxWR)),
			of("max_sge", unsafe.Offsetof(srqAttr.maxSGE), unsafe.Sizeof(srqAttr.maxSGE)),
			of("srq_limit", unsafe.Offsetof(srqAttr.limit), unsafe.Sizeof(srqAttr.limit)),
		}},
		{"ibv_srq_init_attr", unsafe.Sizeof(srq), false, []field{
			of("attr", unsafe.Offsetof(srq.attr), unsafe.Sizeof(srq.attr)),
		}},
		{"ibv_sge", unsafe.Sizeof(sge), false, []field{
			of("addr", unsafe.Offsetof(sge.addr), unsafe.Sizeof(sge.addr)),
			of("length", unsafe.Offsetof(sge.length), unsafe.Sizeof(sge.length)),
			of("lkey", unsafe.Offsetof(sge.lkey), unsafe.Sizeof(sge.lkey)),
		}},
		{"ibv_send_wr", unsafe.Sizeof(send), false, []field{
			of("wr_id", unsafe.Offsetof(send.wrID), unsafe.Sizeof(send.wrID)),
			of("next", unsafe.Offsetof(send.next), unsafe.Sizeof(send.next)),
			of("sg_list", unsafe.Offsetof(send.sgList), unsafe.Sizeof(send.sgList)),
			of("num_sge", unsafe.Offsetof(send.numSGE), unsafe.Sizeof(send.numSGE)),
			of("opcode", unsafe.Offsetof(send.opcode), unsafe.Sizeof(send.opcode)),
			of("send_flags", unsafe.Offsetof(send.sendFlags), unsafe.Sizeof(send.sendFlags)),
			of("imm_data", unsafe.Offsetof(send.imm), unsafe.Sizeof(send.imm)),
			of("invalidate_rkey", unsafe.Offsetof(send.imm), unsafe.Sizeof(send.imm)),
			of("wr", union, unsafe.Sizeof(send.wr)),
			// As remote, atomic and datagram fill it.
			of("wr.rdma.remote_addr", union, 8), of("wr.rdma.rkey", union+8, 4),
			of("wr.atomic.remote_addr", union, 8), of("wr.atomic.compare_add", union+8, 8),
			of("wr.atomic.swap", union+16, 8), of("wr.atomic.rkey", union+24, 4),
			of("wr.ud.ah", union, 8), of("wr.ud.remote_qpn", union+8, 4), of("wr.ud.remote_qkey", union+12, 4),
		}},
		{"ibv_recv_wr", unsafe.Sizeof(recv), false, []field{
			of("wr_id", unsafe.Offsetof(recv.wrID), unsafe.Sizeof(recv.wrID)),
			of("next", unsafe.Offsetof(recv.next), unsafe.Sizeof(recv.next)),
			of("sg_list", unsafe.Offsetof(recv.sgList), unsafe.Sizeof(recv.sgList)),
			of("num_sge", unsafe.Offsetof(recv.numSGE), unsafe.Sizeof(recv.numSGE)),
		}},
		{"ibv_wc", unsafe.Sizeof(wc), false, []field{
			of("wr_id", unsafe.Offsetof(wc.wrID), unsafe.Sizeof(wc.wrID)),
			of("status", unsafe.Offsetof(wc.status), unsafe.Sizeof(wc.status)),
			of("opcode", unsafe.Offsetof(wc.opcode), unsafe.Sizeof(wc.opcode)),
			of("vendor_err", unsafe.Offsetof(wc.vendorErr), unsafe.Sizeof(wc.vendorErr)),
			of("byte_len", unsafe.Offsetof(wc.byteLen), unsafe.Sizeof(wc.byteLen)),
			of("imm_data", unsafe.Offsetof(wc.imm), unsafe.Sizeof(wc.imm)),
			of("qp_num", unsafe.Offsetof(wc.qpNum), unsafe.Sizeof(wc.qpNum)),
			of("src_qp", unsafe.Offsetof(wc.srcQP), unsafe.Sizeof(wc.srcQP)),
			of("wc_flags", unsafe.Offsetof(wc.wcFlags), unsafe.Sizeof(wc.wcFlags)),
		}},
		{"ibv_async_event", unsafe.Sizeof(event), false, []field{
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
			fmt.Fprintf(&source, "printf(\"%s.%s: %%zu, %%zu\\n\", offsetof(struct %s, %s), sizeof(((struct %s *)0)->%s));\n",
				l.c, f.c, l.c, f.c, l.c, f.c)
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
