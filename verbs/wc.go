package verbs

import "fmt"

// WCStatus is how a work request ended. Every value but WCSuccess is an
// error; [WC.Err] returns it as one.
type WCStatus uint8

// The completion statuses, numbered as drivers write them into their queues
// (enum ib_wc_status of the kernel's rdma/ib_verbs.h, enum ibv_wc_status of
// infiniband/verbs.h).
const (
	WCSuccess          WCStatus = 0
	WCLocLenErr        WCStatus = 1
	WCLocQPOpErr       WCStatus = 2
	WCLocEECOpErr      WCStatus = 3
	WCLocProtErr       WCStatus = 4
	WCWRFlushErr       WCStatus = 5
	WCMWBindErr        WCStatus = 6
	WCBadRespErr       WCStatus = 7
	WCLocAccessErr     WCStatus = 8
	WCRemInvReqErr     WCStatus = 9
	WCRemAccessErr     WCStatus = 10
	WCRemOpErr         WCStatus = 11
	WCRetryExcErr      WCStatus = 12
	WCRNRRetryExcErr   WCStatus = 13
	WCLocRDDViolErr    WCStatus = 14
	WCRemInvRDReqErr   WCStatus = 15
	WCRemAbortErr      WCStatus = 16
	WCInvEECNErr       WCStatus = 17
	WCInvEECStateErr   WCStatus = 18
	WCFatalErr         WCStatus = 19
	WCRespTimeoutErr   WCStatus = 20
	WCGeneralErr       WCStatus = 21
	WCTMErr            WCStatus = 22
	WCTMRndvIncomplete WCStatus = 23
)

var wcStatusText = [...]struct{ name, meaning string }{
	WCSuccess:          {"SUCCESS", "success"},
	WCLocLenErr:        {"LOC_LEN", "payload does not fit the local buffer or exceeds the message limit"},
	WCLocQPOpErr:       {"LOC_QP_OP", "work request is not consistent with the QP"},
	WCLocEECOpErr:      {"LOC_EEC_OP", "EE context operation error"},
	WCLocProtErr:       {"LOC_PROT", "local key, bounds or access rights do not cover the buffer"},
	WCWRFlushErr:       {"WR_FLUSH", "QP entered the error state before the request was done"},
	WCMWBindErr:        {"MW_BIND", "memory window bind failed"},
	WCBadRespErr:       {"BAD_RESP", "unexpected response from the peer"},
	WCLocAccessErr:     {"LOC_ACCESS", "protection error on a local buffer during RDMA WRITE with immediate"},
	WCRemInvReqErr:     {"REM_INV_REQ", "peer rejected the request as invalid, for instance because its receive buffer is too small"},
	WCRemAccessErr:     {"REM_ACCESS", "remote key, bounds or access rights do not cover the operation"},
	WCRemOpErr:         {"REM_OP", "peer could not complete the operation"},
	WCRetryExcErr:      {"RETRY_EXC", "peer did not answer within the retry limit: it is gone, unreachable or its QP is in error"},
	WCRNRRetryExcErr:   {"RNR_RETRY_EXC", "peer had no receive posted within the RNR retry limit"},
	WCLocRDDViolErr:    {"LOC_RDD_VIOL", "RDD violation"},
	WCRemInvRDReqErr:   {"REM_INV_RD_REQ", "peer rejected a READ request"},
	WCRemAbortErr:      {"REM_ABORT", "peer aborted the operation"},
	WCInvEECNErr:       {"INV_EECN", "invalid EE context number"},
	WCInvEECStateErr:   {"INV_EEC_STATE", "invalid EE context state"},
	WCFatalErr:         {"FATAL", "device failed"},
	WCRespTimeoutErr:   {"RESP_TIMEOUT", "response timed out"},
	WCGeneralErr:       {"GENERAL", "unspecified transport error"},
	WCTMErr:            {"TM_ERR", "tag matching error"},
	WCTMRndvIncomplete: {"TM_RNDV_INCOMPLETE", "tag matching rendezvous incomplete"},
}

// String returns the status's name, for instance "RETRY_EXC".
func (s WCStatus) String() string {
	if int(s) < len(wcStatusText) {
		return wcStatusText[s].name
	}
	return fmt.Sprintf("STATUS(%d)", uint8(s))
}

// Error says what the status means. WCStatus is comparable, so
// errors.Is(err, verbs.WCRetryExcErr) works.
func (s WCStatus) Error() string {
	if int(s) < len(wcStatusText) {
		return "verbs: " + wcStatusText[s].name + ": " + wcStatusText[s].meaning
	}
	return fmt.Sprintf("verbs: unknown completion status %d", uint8(s))
}

// WCOpcode is what completed (enum ib_uverbs_wc_opcode, rdma/ib_user_verbs.h).
// It is valid only if the status is WCSuccess.
type WCOpcode uint8

// The completion opcodes, numbered as in rdma/ib_user_verbs.h; those of the
// receive side as in infiniband/verbs.h, which the header leaves out.
const (
	WCSend             WCOpcode = 0
	WCWrite            WCOpcode = 1
	WCRead             WCOpcode = 2
	WCCompareSwap      WCOpcode = 3
	WCFetchAdd         WCOpcode = 4
	WCBindMW           WCOpcode = 5
	WCLocalInv         WCOpcode = 6
	WCFlush            WCOpcode = 8
	WCAtomicWrite      WCOpcode = 9
	WCRecv             WCOpcode = 128
	WCRecvWriteWithImm WCOpcode = 129
)

// WCFlags qualify a completion.
type WCFlags uint8

// The completion flags, numbered as in infiniband/verbs.h (enum
// ibv_wc_flags). Drivers whose queue has other numbers translate: rxe writes
// WCWithInv as 1 << 2.
const (
	WCGRH     WCFlags = 1 << 0 // a GRH precedes the payload (UD)
	WCWithImm WCFlags = 1 << 1 // Imm is valid
	WCWithInv WCFlags = 1 << 3 // Imm is the rkey that was invalidated
)

// WC is a work completion. It is a value: polling allocates nothing.
type WC struct {
	ID      uint64
	Status  WCStatus
	Opcode  WCOpcode
	Flags   WCFlags
	SL      uint8  // UD receives only, with a LID: the service level
	ByteLen uint32 // bytes received, or written by the peer with immediate
	Imm     uint32 // immediate, host byte order, or the invalidated rkey
	QPN     uint32 // QP that it belongs to
	SrcQPN  uint32 // UD receives only: the sender
	// VendorErr is the device's own code of an error, 0 if it has none.
	VendorErr uint32
	SLID      uint16 // UD receives only: the sender's LID, 0 on Ethernet
	PathBits  uint8  // UD receives only: the low bits of the LID that it was sent to
	// Timestamp is when the request was done, by the clock of the device (DeviceAttr.ClockHz),
	// if the CQ was made with CQAttr.Timestamps. A request that failed may have none: 0.
	Timestamp uint64
}

// Err returns nil for success and the status as an error otherwise.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return wc.Status
}
