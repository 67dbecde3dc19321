package uverbs

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi/abitest"
)

// The figures are those that a C compiler makes of the kernel's headers on
// amd64; they are the same on arm64.
func TestStructuresAreLaidOutAsInC(t *testing.T) {
	for _, c := range []struct {
		value   any
		size    uintptr
		offsets map[string]uintptr
	}{
		{asyncEventDesc{}, 16, map[string]uintptr{"eventType": 8}},
		{compEventDesc{}, 8, nil},
		{commandHeader{}, 8, map[string]uintptr{"inWords": 4, "outWords": 6}},
		{extendedHeader{}, 16, map[string]uintptr{"driverInWords": 8, "driverOutWords": 10}},
		{responseOnly{}, 8, nil},
		{getContextOut{}, 8, nil},
		{queryDeviceOut{}, 176, map[string]uintptr{
			"nodeGUID": 8, "sysImageGUID": 16, "maxMRSize": 24, "vendorID": 40, "vendorPartID": 44, "hwVer": 48,
			"maxQP": 52, "maxQPWR": 56, "deviceCapFlags": 60, "maxSGE": 64, "maxSGERead": 68, "maxCQ": 72, "maxCQE": 76, "maxMR": 80,
			"maxPD": 84, "maxQPRdAtom": 88, "maxQPInitRdAtom": 100,
			"maxMW": 120, "maxAH": 144, "maxSRQ": 156, "maxSRQWR": 160, "maxSRQSGE": 164, "localCAAckDelay": 170, "physPortCnt": 171,
		}},
		{exQueryDeviceIn{}, 8, nil},
		{odpCaps{}, 24, map[string]uintptr{"rc": 8, "uc": 12, "ud": 16}},
		{exQueryDeviceOut{}, 304, map[string]uintptr{
			"odp": 184, "deviceCapFlagsEx": 224,
		}},
		{queryPortIn{}, 16, map[string]uintptr{"portNum": 8}},
		{queryPortOut{}, 40, map[string]uintptr{
			"maxMsgSize": 4, "gidTblLen": 16, "pkeyTblLen": 20, "lid": 22, "smLID": 24, "state": 26,
			"maxMTU": 27, "activeMTU": 28, "lmc": 29,
			"activeWidth": 34, "activeSpeed": 35, "physState": 36, "linkLayer": 37,
		}},
		{allocPDOut{}, 4, nil},
		{handleOnly{}, 4, nil},
		{destroyIn{}, 16, map[string]uintptr{"handle": 8}},
		{regMRIn{}, 40, map[string]uintptr{"start": 8, "length": 16, "hcaVA": 24, "pdHandle": 32, "accessFlags": 36}},
		{regMROut{}, 12, map[string]uintptr{"lkey": 4, "rkey": 8}},
		{reregMRIn{}, 48, map[string]uintptr{"handle": 8, "flags": 12, "start": 16, "length": 24, "hcaVA": 32, "pdHandle": 40, "accessFlags": 44}},
		{reregMROut{}, 8, nil},
		{allocMWIn{}, 16, map[string]uintptr{"pdHandle": 8, "mwType": 12}},
		{allocMWOut{}, 8, map[string]uintptr{"rkey": 4}},
		{createCompChannelOut{}, 4, nil},
		{createCQIn{}, 32, map[string]uintptr{"userHandle": 8, "cqe": 16, "compVector": 20, "compChannel": 24}},
		{createCQOut{}, 8, map[string]uintptr{"cqe": 4}},
		{resizeCQIn{}, 16, map[string]uintptr{"handle": 8, "cqe": 12}},
		{resizeCQOut{}, 8, nil},
		{uverbsWC{}, 48, map[string]uintptr{
			"status": 8, "opcode": 12, "vendorErr": 16, "byteLen": 20, "ex": 24, "qpNum": 28, "srcQP": 32, "wcFlags": 36,
		}},
		{reqNotifyCQIn{}, 8, map[string]uintptr{"solicitedOnly": 4}},
		{destroyCQOut{}, 8, nil},
		{globalRoute{}, 24, map[string]uintptr{"flowLabel": 16, "sgidIndex": 20, "hopLimit": 21, "trafficClass": 22}},
		{ahAttr{}, 32, map[string]uintptr{"dlid": 24, "sl": 26, "srcPathBits": 27, "staticRate": 28, "isGlobal": 29, "portNum": 30}},
		{createQPIn{}, 56, map[string]uintptr{
			"userHandle": 8, "pdHandle": 16, "sendCQ": 20, "recvCQ": 24, "srqHandle": 28, "maxSendWR": 32, "maxRecvWR": 36,
			"maxSendSGE": 40, "maxRecvSGE": 44, "maxInline": 48, "sqSigAll": 52, "qpType": 53, "isSRQ": 54,
		}},
		{createQPOut{}, 32, map[string]uintptr{"qpn": 4, "maxSendWR": 8, "maxInline": 24}},
		{qpDest{}, 32, map[string]uintptr{
			"flowLabel": 16, "dlid": 20, "sgidIndex": 24, "hopLimit": 25, "trafficClass": 26, "sl": 27, "srcPathBits": 28,
			"staticRate": 29, "isGlobal": 30, "portNum": 31,
		}},
		{queryQPIn{}, 16, map[string]uintptr{"handle": 8, "attrMask": 12}},
		{queryQPOut{}, 128, map[string]uintptr{
			"altDest": 32, "maxSendWR": 64, "maxInline": 80, "qkey": 84, "rqPSN": 88, "sqPSN": 92, "destQPNum": 96, "accessFlags": 100,
			"pkeyIndex": 104, "qpState": 108, "curQPState": 109, "pathMTU": 110, "pathMigState": 111, "sqDraining": 112, "maxRdAtomic": 113,
			"timeout": 117, "retryCnt": 118, "rnrRetry": 119,
		}},
		{modifyQPIn{}, 112, map[string]uintptr{
			"altDest": 32, "handle": 64, "attrMask": 68, "qkey": 72, "rqPSN": 76, "sqPSN": 80, "destQPNum": 84, "accessFlags": 88,
			"pkeyIndex": 92, "altPKeyIndex": 94, "qpState": 96, "curQPState": 97, "pathMTU": 98, "pathMigState": 99, "enSQDAsyncNotify": 100,
			"maxRdAtomic": 101, "maxDestRdAtomic": 102, "minRNRTimer": 103, "portNum": 104, "timeout": 105, "retryCnt": 106, "rnrRetry": 107,
			"altPortNum": 108, "altTimeout": 109,
		}},
		{destroyQPOut{}, 4, nil},
		{postSendIn{}, 24, map[string]uintptr{"handle": 8, "wqeSize": 20}},
		{postSendOut{}, 4, nil},
		{createAHIn{}, 56, map[string]uintptr{"pdHandle": 16, "attr": 24}},
		{createAHOut{}, 4, nil},
		{createSRQIn{}, 32, map[string]uintptr{"userHandle": 8, "pdHandle": 16, "maxWR": 20, "maxSGE": 24, "limit": 28}},
		{createSRQOut{}, 16, map[string]uintptr{"maxWR": 4, "maxSGE": 8}},
		{modifySRQIn{}, 16, map[string]uintptr{"attrMask": 4, "maxWR": 8, "limit": 12}},
		{querySRQIn{}, 16, map[string]uintptr{"handle": 8}},
		{querySRQOut{}, 16, map[string]uintptr{"maxSGE": 4, "limit": 8}},
		{ioctlHeader{}, 24, map[string]uintptr{"objectID": 2, "methodID": 4, "numAttrs": 6, "driverID": 16}},
		{ioctlAttr{}, 16, map[string]uintptr{"len": 2, "flags": 4, "data": 8}},
		{gidEntry{}, 32, map[string]uintptr{"index": 16, "portNum": 20, "gidType": 24, "ifindex": 28}},
	} {
		abitest.RequireLayout(t, c.value, c.size, c.offsets)
	}
}
