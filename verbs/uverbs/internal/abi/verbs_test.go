package abi

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
		{AsyncEventDesc{}, 16, map[string]uintptr{"EventType": 8}},
		{CompEventDesc{}, 8, nil},
		{CommandHeader{}, 8, map[string]uintptr{"InWords": 4, "OutWords": 6}},
		{extendedHeader{}, 16, map[string]uintptr{"DriverInWords": 8, "DriverOutWords": 10}},
		{ResponseOnly{}, 8, nil},
		{GetContextOut{}, 8, nil},
		{QueryDeviceOut{}, 176, map[string]uintptr{
			"NodeGUID": 8, "SysImageGUID": 16, "MaxMRSize": 24, "VendorID": 40, "VendorPartID": 44, "HwVer": 48,
			"MaxQP": 52, "MaxQPWR": 56, "DeviceCapFlags": 60, "MaxSGE": 64, "MaxSGERead": 68, "MaxCQ": 72, "MaxCQE": 76, "MaxMR": 80,
			"MaxPD": 84, "MaxQPRdAtom": 88, "MaxQPInitRdAtom": 100,
			"MaxMW": 120, "MaxMcastGrp": 132, "MaxAH": 144, "MaxSRQ": 156, "MaxSRQWR": 160, "MaxSRQSGE": 164, "LocalCAAckDelay": 170, "PhysPortCnt": 171,
		}},
		{ExQueryDeviceIn{}, 8, nil},
		{odpCaps{}, 24, map[string]uintptr{"RC": 8, "UC": 12, "UD": 16}},
		{ExQueryDeviceOut{}, 304, map[string]uintptr{
			"ODP": 184, "TimestampMask": 208, "HCACoreClock": 216, "DeviceCapFlagsEx": 224, "MaxModCount": 280, "MaxModPeriod": 282, "MaxDMSize": 288, "XRCODP": 296,
		}},
		{QueryPortIn{}, 16, map[string]uintptr{"PortNum": 8}},
		{QueryPortOut{}, 40, map[string]uintptr{
			"MaxMsgSize": 4, "GIDTblLen": 16, "PKeyTblLen": 20, "LID": 22, "SMLID": 24, "State": 26,
			"MaxMTU": 27, "ActiveMTU": 28, "LMC": 29,
			"ActiveWidth": 34, "ActiveSpeed": 35, "PhysState": 36, "LinkLayer": 37,
		}},
		{AllocPDOut{}, 4, nil},
		{HandleOnly{}, 4, nil},
		{DestroyIn{}, 16, map[string]uintptr{"Handle": 8}},
		{RegMRIn{}, 40, map[string]uintptr{"Start": 8, "Length": 16, "HCAVA": 24, "PDHandle": 32, "AccessFlags": 36}},
		{RegMROut{}, 12, map[string]uintptr{"LKey": 4, "RKey": 8}},
		{ReregMRIn{}, 48, map[string]uintptr{"Handle": 8, "Flags": 12, "Start": 16, "Length": 24, "HCAVA": 32, "PDHandle": 40, "AccessFlags": 44}},
		{ReregMROut{}, 8, nil},
		{AllocMWIn{}, 16, map[string]uintptr{"PDHandle": 8, "MWType": 12}},
		{AllocMWOut{}, 8, map[string]uintptr{"RKey": 4}},
		{CreateCompChannelOut{}, 4, nil},
		{CreateCQIn{}, 32, map[string]uintptr{"UserHandle": 8, "CQE": 16, "CompVector": 20, "CompChannel": 24}},
		{CreateCQOut{}, 8, map[string]uintptr{"CQE": 4}},
		{ResizeCQIn{}, 16, map[string]uintptr{"Handle": 8, "CQE": 12}},
		{ResizeCQOut{}, 8, nil},
		{ModifyCQIn{}, 16, map[string]uintptr{"AttrMask": 4, "Count": 8, "Period": 10}},
		{WC{}, 48, map[string]uintptr{
			"Status": 8, "Opcode": 12, "VendorErr": 16, "ByteLen": 20, "Ex": 24, "QPNum": 28, "SrcQP": 32, "WCFlags": 36, "SLID": 42, "SL": 44, "PathBits": 45,
		}},
		{ReqNotifyCQIn{}, 8, map[string]uintptr{"SolicitedOnly": 4}},
		{DestroyCQOut{}, 8, nil},
		{MulticastIn{}, 24, map[string]uintptr{"QPHandle": 16, "MLID": 20}},
		{GlobalRoute{}, 24, map[string]uintptr{"FlowLabel": 16, "SGIDIndex": 20, "HopLimit": 21, "TrafficClass": 22}},
		{AHAttr{}, 32, map[string]uintptr{"DLID": 24, "SL": 26, "SrcPathBits": 27, "StaticRate": 28, "IsGlobal": 29, "PortNum": 30}},
		{CreateQPIn{}, 56, map[string]uintptr{
			"UserHandle": 8, "PDHandle": 16, "SendCQ": 20, "RecvCQ": 24, "SRQHandle": 28, "MaxSendWR": 32, "MaxRecvWR": 36,
			"MaxSendSGE": 40, "MaxRecvSGE": 44, "MaxInline": 48, "SQSigAll": 52, "QPType": 53, "IsSRQ": 54,
		}},
		{CreateQPOut{}, 32, map[string]uintptr{"QPN": 4, "MaxSendWR": 8, "MaxInline": 24}},
		{QPDest{}, 32, map[string]uintptr{
			"FlowLabel": 16, "DLID": 20, "SGIDIndex": 24, "HopLimit": 25, "TrafficClass": 26, "SL": 27, "SrcPathBits": 28,
			"StaticRate": 29, "IsGlobal": 30, "PortNum": 31,
		}},
		{QueryQPIn{}, 16, map[string]uintptr{"Handle": 8, "AttrMask": 12}},
		{QueryQPOut{}, 128, map[string]uintptr{
			"AltDest": 32, "MaxSendWR": 64, "MaxInline": 80, "QKey": 84, "RQPSN": 88, "SQPSN": 92, "DestQPNum": 96, "AccessFlags": 100,
			"PKeyIndex": 104, "QPState": 108, "CurQPState": 109, "PathMTU": 110, "PathMigState": 111, "SQDraining": 112, "MaxRdAtomic": 113,
			"Timeout": 117, "RetryCnt": 118, "RnrRetry": 119,
		}},
		{ModifyQPIn{}, 112, map[string]uintptr{
			"AltDest": 32, "Handle": 64, "AttrMask": 68, "QKey": 72, "RQPSN": 76, "SQPSN": 80, "DestQPNum": 84, "AccessFlags": 88,
			"PKeyIndex": 92, "AltPKeyIndex": 94, "QPState": 96, "CurQPState": 97, "PathMTU": 98, "PathMigState": 99, "EnSQDAsyncNotify": 100,
			"MaxRdAtomic": 101, "MaxDestRdAtomic": 102, "MinRNRTimer": 103, "PortNum": 104, "Timeout": 105, "RetryCnt": 106, "RnrRetry": 107,
			"AltPortNum": 108, "AltTimeout": 109,
		}},
		{DestroyQPOut{}, 4, nil},
		{PostSendIn{}, 24, map[string]uintptr{"Handle": 8, "WQESize": 20}},
		{postSendOut{}, 4, nil},
		{CreateAHIn{}, 56, map[string]uintptr{"PDHandle": 16, "Attr": 24}},
		{CreateAHOut{}, 4, nil},
		{CreateSRQIn{}, 32, map[string]uintptr{"UserHandle": 8, "PDHandle": 16, "MaxWR": 20, "MaxSGE": 24, "Limit": 28}},
		{CreateSRQOut{}, 16, map[string]uintptr{"MaxWR": 4, "MaxSGE": 8, "Num": 12}},
		{OpenXRCDomainIn{}, 16, map[string]uintptr{"FD": 8, "Flags": 12}},
		{OpenXRCDomainOut{}, 4, nil},
		{CreateXSRQIn{}, 48, map[string]uintptr{
			"UserHandle": 8, "Type": 16, "PDHandle": 20, "MaxWR": 24, "MaxSGE": 28, "Limit": 32, "DomainHandle": 40, "CQHandle": 44,
		}},
		{OpenQPIn{}, 32, map[string]uintptr{"UserHandle": 8, "DomainHandle": 16, "QPN": 20, "QPType": 24}},
		{ModifySRQIn{}, 16, map[string]uintptr{"AttrMask": 4, "MaxWR": 8, "Limit": 12}},
		{QuerySRQIn{}, 16, map[string]uintptr{"Handle": 8}},
		{QuerySRQOut{}, 16, map[string]uintptr{"MaxSGE": 4, "Limit": 8}},
		{IoctlHeader{}, 24, map[string]uintptr{"ObjectID": 2, "MethodID": 4, "NumAttrs": 6, "DriverID": 16}},
		{IoctlAttr{}, 16, map[string]uintptr{"Len": 2, "Flags": 4, "Data": 8}},
		{GIDEntry{}, 32, map[string]uintptr{"Index": 16, "PortNum": 20, "GIDType": 24, "Ifindex": 28}},
	} {
		abitest.RequireLayout(t, c.value, c.size, c.offsets)
	}
}
