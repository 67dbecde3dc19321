package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// modifyQP translates attributes into the command. The kernel looks only at
// what mask names.
func modifyQP(a *verbs.QPAttr, mask verbs.QPAttrMask) abi.ModifyQPIn {
	return abi.ModifyQPIn{
		Dest: destOf(&a.AV), AltDest: destOf(&a.AltAV),
		AttrMask: uint32(mask), QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPN, AccessFlags: uint32(a.Access),
		PKeyIndex: a.PKeyIndex, AltPKeyIndex: a.AltPKeyIndex, QPState: uint8(a.State), CurQPState: uint8(a.CurState),
		PathMTU: uint8(a.PathMTU), PathMigState: a.PathMigState, EnSQDAsyncNotify: flag(a.EnSQDAsyncNotify),
		MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, PortNum: a.Port,
		Timeout: a.Timeout, RetryCnt: a.RetryCount, RnrRetry: a.RNRRetry, AltPortNum: a.AltPort, AltTimeout: a.AltTimeout,
	}
}

func destOf(av *verbs.AddressVector) abi.QPDest {
	return abi.QPDest{
		DGID: av.DGID, FlowLabel: av.FlowLabel, DLID: av.DLID, SGIDIndex: av.SGIDIndex, HopLimit: av.HopLimit,
		TrafficClass: av.TrafficClass, SL: av.SL, SrcPathBits: av.SrcPathBits, StaticRate: av.StaticRate,
		IsGlobal: flag(av.IsGlobal), PortNum: av.Port,
	}
}

func addressVector(d *abi.QPDest) verbs.AddressVector {
	return verbs.AddressVector{
		DGID: d.DGID, SGIDIndex: d.SGIDIndex, FlowLabel: d.FlowLabel, HopLimit: d.HopLimit, TrafficClass: d.TrafficClass,
		DLID: d.DLID, SL: d.SL, SrcPathBits: d.SrcPathBits, StaticRate: d.StaticRate, IsGlobal: d.IsGlobal != 0, Port: d.PortNum,
	}
}

// queryMask asks for everything.
const queryMask = 1<<21 - 1

func attrOf(q *abi.QueryQPOut) verbs.QPAttr {
	return verbs.QPAttr{
		State: verbs.QPState(q.QPState), CurState: verbs.QPState(q.CurQPState), Access: verbs.Access(q.AccessFlags),
		PKeyIndex: q.PKeyIndex, Port: q.PortNum, QKey: q.QKey, AV: addressVector(&q.Dest), AltAV: addressVector(&q.AltDest),
		AltPKeyIndex: q.AltPKeyIndex, AltPort: q.AltPortNum, AltTimeout: q.AltTimeout, PathMTU: verbs.MTU(q.PathMTU),
		Timeout: q.Timeout, RetryCount: q.RetryCnt, RNRRetry: q.RnrRetry, RQPSN: q.RQPSN, SQPSN: q.SQPSN,
		MaxRdAtomic: q.MaxRdAtomic, MaxDestRdAtomic: q.MaxDestRdAtomic, MinRNRTimer: q.MinRNRTimer,
		PathMigState: q.PathMigState, SQDraining: q.SQDraining != 0, DestQPN: q.DestQPNum,
		Cap: verbs.QPCap{
			MaxSendWR: int(int32(q.MaxSendWR)), MaxRecvWR: int(int32(q.MaxRecvWR)), MaxSendSGE: int(int32(q.MaxSendSGE)),
			MaxRecvSGE: int(int32(q.MaxRecvSGE)), MaxInline: int(int32(q.MaxInline)),
		},
	}
}
