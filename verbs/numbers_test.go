package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// number is a constant of ours and the number that the kernel gives it.
type number struct {
	name string
	ours uint64
	want uint64
}

// TestNumbersAreThoseOfTheKernel holds the constants against literals taken
// from the headers named, so that a reordered list cannot pass.
func TestNumbersAreThoseOfTheKernel(t *testing.T) {
	for source, list := range map[string][]number{
		"enum ib_uverbs_wr_opcode, rdma/ib_user_verbs.h": {
			{"RDMA_WRITE", uint64(OpWrite), 0},
			{"RDMA_WRITE_WITH_IMM", uint64(OpWriteWithImm), 1},
			{"SEND", uint64(OpSend), 2},
			{"SEND_WITH_IMM", uint64(OpSendWithImm), 3},
			{"RDMA_READ", uint64(OpRead), 4},
			{"ATOMIC_CMP_AND_SWP", uint64(OpCompareSwap), 5},
			{"ATOMIC_FETCH_AND_ADD", uint64(OpFetchAdd), 6},
			{"SEND_WITH_INV", uint64(OpSendWithInv), 9},
		},
		"enum ib_uverbs_wc_opcode, rdma/ib_user_verbs.h; ibv_wc_opcode, infiniband/verbs.h": {
			{"SEND", uint64(WCSend), 0},
			{"RDMA_WRITE", uint64(WCWrite), 1},
			{"RDMA_READ", uint64(WCRead), 2},
			{"COMP_SWAP", uint64(WCCompareSwap), 3},
			{"FETCH_ADD", uint64(WCFetchAdd), 4},
			{"RECV", uint64(WCRecv), 0x80},
			{"RECV_RDMA_WITH_IMM", uint64(WCRecvWriteWithImm), 0x81},
		},
		"enum ibv_wc_flags, infiniband/verbs.h": {
			{"GRH", uint64(WCGRH), 1},
			{"WITH_IMM", uint64(WCWithImm), 2},
			{"WITH_INV", uint64(WCWithInv), 8},
		},
		"enum ibv_send_flags, infiniband/verbs.h": {
			{"FENCE", uint64(SendFence), 1},
			{"SIGNALED", uint64(SendSignaled), 2},
			{"SOLICITED", uint64(SendSolicited), 4},
			{"INLINE", uint64(SendInline), 8},
		},
		"enum ib_wc_status, rdma/ib_verbs.h": {
			{"SUCCESS", uint64(WCSuccess), 0},
			{"LOC_LEN_ERR", uint64(WCLocLenErr), 1},
			{"LOC_QP_OP_ERR", uint64(WCLocQPOpErr), 2},
			{"LOC_EEC_OP_ERR", uint64(WCLocEECOpErr), 3},
			{"LOC_PROT_ERR", uint64(WCLocProtErr), 4},
			{"WR_FLUSH_ERR", uint64(WCWRFlushErr), 5},
			{"MW_BIND_ERR", uint64(WCMWBindErr), 6},
			{"BAD_RESP_ERR", uint64(WCBadRespErr), 7},
			{"LOC_ACCESS_ERR", uint64(WCLocAccessErr), 8},
			{"REM_INV_REQ_ERR", uint64(WCRemInvReqErr), 9},
			{"REM_ACCESS_ERR", uint64(WCRemAccessErr), 10},
			{"REM_OP_ERR", uint64(WCRemOpErr), 11},
			{"RETRY_EXC_ERR", uint64(WCRetryExcErr), 12},
			{"RNR_RETRY_EXC_ERR", uint64(WCRNRRetryExcErr), 13},
			{"LOC_RDD_VIOL_ERR", uint64(WCLocRDDViolErr), 14},
			{"REM_INV_RD_REQ_ERR", uint64(WCRemInvRDReqErr), 15},
			{"REM_ABORT_ERR", uint64(WCRemAbortErr), 16},
			{"INV_EECN_ERR", uint64(WCInvEECNErr), 17},
			{"INV_EEC_STATE_ERR", uint64(WCInvEECStateErr), 18},
			{"FATAL_ERR", uint64(WCFatalErr), 19},
			{"RESP_TIMEOUT_ERR", uint64(WCRespTimeoutErr), 20},
			{"GENERAL_ERR", uint64(WCGeneralErr), 21},
			{"TM_ERR", uint64(WCTMErr), 22},
			{"TM_RNDV_INCOMPLETE", uint64(WCTMRndvIncomplete), 23},
		},
		"enum ib_uverbs_access_flags, rdma/ib_user_ioctl_verbs.h": {
			{"LOCAL_WRITE", uint64(AccessLocalWrite), 0x01},
			{"REMOTE_WRITE", uint64(AccessRemoteWrite), 0x02},
			{"REMOTE_READ", uint64(AccessRemoteRead), 0x04},
			{"REMOTE_ATOMIC", uint64(AccessRemoteAtomic), 0x08},
			{"MW_BIND", uint64(AccessMWBind), 0x10},
			{"ZERO_BASED", uint64(AccessZeroBased), 0x20},
			{"ON_DEMAND", uint64(AccessOnDemand), 0x40},
		},
		"enum ibv_odp_general_caps, infiniband/verbs.h": {
			{"SUPPORT", uint64(ODPSupported), 1},
			{"SUPPORT_IMPLICIT", uint64(ODPImplicit), 2},
		},
		"enum ibv_odp_transport_cap_bits, infiniband/verbs.h": {
			{"SEND", uint64(ODPSend), 1},
			{"RECV", uint64(ODPRecv), 2},
			{"WRITE", uint64(ODPWrite), 4},
			{"READ", uint64(ODPRead), 8},
			{"ATOMIC", uint64(ODPAtomic), 16},
			{"SRQ_RECV", uint64(ODPSRQRecv), 32},
			{"FLUSH", uint64(ODPFlush), 64},
			{"ATOMIC_WRITE", uint64(ODPAtomicWrite), 128},
		},
		"enum ib_uverbs_qp_type, rdma/ib_user_ioctl_verbs.h": {
			{"RC", uint64(QPTypeRC), 2},
			{"UC", uint64(QPTypeUC), 3},
			{"UD", uint64(QPTypeUD), 4},
			{"XRC_INI", uint64(QPTypeXRCInitiator), 9},
			{"XRC_TGT", uint64(QPTypeXRCTarget), 10},
		},
		"enum ib_qp_state, rdma/ib_verbs.h": {
			{"RESET", uint64(QPStateReset), 0},
			{"INIT", uint64(QPStateInit), 1},
			{"RTR", uint64(QPStateRTR), 2},
			{"RTS", uint64(QPStateRTS), 3},
			{"SQD", uint64(QPStateSQD), 4},
			{"SQE", uint64(QPStateSQE), 5},
			{"ERR", uint64(QPStateErr), 6},
		},
		"enum ib_qp_attr_mask, rdma/ib_verbs.h": {
			{"STATE", uint64(QPAttrState), 0x1},
			{"CUR_STATE", uint64(QPAttrCurState), 0x2},
			{"EN_SQD_ASYNC_NOTIFY", uint64(QPAttrEnSQDNotify), 0x4},
			{"ACCESS_FLAGS", uint64(QPAttrAccess), 0x8},
			{"PKEY_INDEX", uint64(QPAttrPKeyIndex), 0x10},
			{"PORT", uint64(QPAttrPort), 0x20},
			{"QKEY", uint64(QPAttrQKey), 0x40},
			{"AV", uint64(QPAttrAV), 0x80},
			{"PATH_MTU", uint64(QPAttrPathMTU), 0x100},
			{"TIMEOUT", uint64(QPAttrTimeout), 0x200},
			{"RETRY_CNT", uint64(QPAttrRetryCount), 0x400},
			{"RNR_RETRY", uint64(QPAttrRNRRetry), 0x800},
			{"RQ_PSN", uint64(QPAttrRQPSN), 0x1000},
			{"MAX_QP_RD_ATOMIC", uint64(QPAttrMaxRdAtomic), 0x2000},
			{"ALT_PATH", uint64(QPAttrAltPath), 0x4000},
			{"MIN_RNR_TIMER", uint64(QPAttrMinRNRTimer), 0x8000},
			{"SQ_PSN", uint64(QPAttrSQPSN), 0x10000},
			{"MAX_DEST_RD_ATOMIC", uint64(QPAttrMaxDestRdAtomic), 0x20000},
			{"PATH_MIG_STATE", uint64(QPAttrPathMigState), 0x40000},
			{"CAP", uint64(QPAttrCap), 0x80000},
			{"DEST_QPN", uint64(QPAttrDestQPN), 0x100000},
		},
		"enum ib_srq_attr_mask, rdma/ib_verbs.h": {
			{"MAX_WR", uint64(SRQAttrMaxWR), 1},
			{"LIMIT", uint64(SRQAttrLimit), 2},
		},
		"enum ib_event_type, rdma/ib_verbs.h": {
			{"CQ_ERR", uint64(EventCQErr), 0},
			{"QP_FATAL", uint64(EventQPFatal), 1},
			{"QP_REQ_ERR", uint64(EventQPReqErr), 2},
			{"QP_ACCESS_ERR", uint64(EventQPAccessErr), 3},
			{"COMM_EST", uint64(EventCommEst), 4},
			{"SQ_DRAINED", uint64(EventSQDrained), 5},
			{"PATH_MIG", uint64(EventPathMig), 6},
			{"PATH_MIG_ERR", uint64(EventPathMigErr), 7},
			{"DEVICE_FATAL", uint64(EventDeviceFatal), 8},
			{"PORT_ACTIVE", uint64(EventPortActive), 9},
			{"PORT_ERR", uint64(EventPortErr), 10},
			{"LID_CHANGE", uint64(EventLIDChange), 11},
			{"PKEY_CHANGE", uint64(EventPKeyChange), 12},
			{"SM_CHANGE", uint64(EventSMChange), 13},
			{"SRQ_ERR", uint64(EventSRQErr), 14},
			{"SRQ_LIMIT_REACHED", uint64(EventSRQLimitReached), 15},
			{"QP_LAST_WQE_REACHED", uint64(EventLastWQEReached), 16},
			{"CLIENT_REREGISTER", uint64(EventClientReregister), 17},
			{"GID_CHANGE", uint64(EventGIDChange), 18},
			{"WQ_FATAL", uint64(EventWQFatal), 19},
			{"DEVICE_SPEED_CHANGE", uint64(EventSpeedChange), 20},
		},
		"enum ib_uverbs_gid_type, rdma/ib_user_ioctl_verbs.h": {
			{"IB", uint64(GIDTypeIB), 0},
			{"ROCE_V1", uint64(GIDTypeRoCEv1), 1},
			{"ROCE_V2", uint64(GIDTypeRoCEv2), 2},
		},
		"enum ib_port_state, rdma/ib_verbs.h": {
			{"NOP", uint64(PortNop), 0},
			{"DOWN", uint64(PortDown), 1},
			{"INIT", uint64(PortInit), 2},
			{"ARMED", uint64(PortArmed), 3},
			{"ACTIVE", uint64(PortActive), 4},
			{"ACTIVE_DEFER", uint64(PortDefer), 5},
		},
		"enum ib_mtu, rdma/ib_verbs.h": {
			{"256", uint64(MTU256), 1},
			{"512", uint64(MTU512), 2},
			{"1024", uint64(MTU1024), 3},
			{"2048", uint64(MTU2048), 4},
			{"4096", uint64(MTU4096), 5},
		},
	} {
		t.Run(source, func(t *testing.T) {
			for _, n := range list {
				require.Equal(t, n.want, n.ours, n.name)
			}
		})
	}
}

func TestSoftGIDTypeIsNoneOfTheKernel(t *testing.T) {
	require.Greater(t, uint32(GIDTypeSoft), uint32(0xff))
}

func TestNamesAreThoseOfTheSpecification(t *testing.T) {
	require.Equal(t, "WRITE_WITH_IMM", OpWriteWithImm.String())
	require.Equal(t, "SEND_WITH_INV", OpSendWithInv.String())
	require.Equal(t, "OPCODE(10)", Opcode(10).String(), "TSO is not offered")
	require.Equal(t, "OPCODE(255)", Opcode(255).String())
	require.Equal(t, "RTS", QPStateRTS.String())
	require.Equal(t, "STATE(7)", QPState(7).String())
	require.Equal(t, "SRQ_LIMIT_REACHED", EventSRQLimitReached.String())
	require.Equal(t, "DEVICE_SPEED_CHANGE", EventSpeedChange.String())
	require.Equal(t, "EVENT(21)", EventType(21).String())
	require.Equal(t, "RNR_RETRY_EXC", WCRNRRetryExcErr.String())
	require.Equal(t, "STATUS(24)", WCStatus(24).String())
	require.Equal(t, "iwarp", TransportIWARP.String())
	require.Equal(t, "transport(9)", Transport(9).String())
	require.Equal(t, "::ffff:10.0.0.1", GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}.String())
}

func TestEveryFailedStatusIsAnErrorThatExplains(t *testing.T) {
	seen := make(map[string]bool)
	for s := WCSuccess; s <= WCTMRndvIncomplete; s++ {
		wc := WC{Status: s}
		if s == WCSuccess {
			require.NoError(t, wc.Err())
			continue
		}
		require.ErrorIs(t, wc.Err(), s)
		require.NotErrorIs(t, wc.Err(), s+1)
		text := wc.Err().Error()
		require.Regexp(t, `^verbs: [A-Z_]+: .{8,}`, text)
		require.False(t, seen[text], text)
		seen[text] = true
	}
	unknown := WC{Status: 200}
	require.EqualError(t, unknown.Err(), "verbs: unknown completion status 200")
}

func TestMTUCodesMeanBytes(t *testing.T) {
	for code, want := range map[MTU]int{0: 0, 1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 6: 0, 255: 0} {
		require.Equal(t, want, code.Bytes(), "code %d", code)
	}
}
