package uverbs

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// modifyQP translates attributes into the command. The kernel looks only at
// what mask names.
func modifyQP(a *verbs.QPAttr, mask verbs.QPAttrMask) modifyQPIn {
	return modifyQPIn{
		dest: destOf(&a.AV), altDest: destOf(&a.AltAV),
		attrMask: uint32(mask), qkey: a.QKey, rqPSN: a.RQPSN, sqPSN: a.SQPSN, destQPNum: a.DestQPN, accessFlags: uint32(a.Access),
		pkeyIndex: a.PKeyIndex, altPKeyIndex: a.AltPKeyIndex, qpState: uint8(a.State), curQPState: uint8(a.CurState),
		pathMTU: uint8(a.PathMTU), pathMigState: a.PathMigState, enSQDAsyncNotify: flag(a.EnSQDAsyncNotify),
		maxRdAtomic: a.MaxRdAtomic, maxDestRdAtomic: a.MaxDestRdAtomic, minRNRTimer: a.MinRNRTimer, portNum: a.Port,
		timeout: a.Timeout, retryCnt: a.RetryCount, rnrRetry: a.RNRRetry, altPortNum: a.AltPort, altTimeout: a.AltTimeout,
	}
}

func destOf(av *verbs.AddressVector) qpDest {
	return qpDest{
		dgid: av.DGID, flowLabel: av.FlowLabel, dlid: av.DLID, sgidIndex: av.SGIDIndex, hopLimit: av.HopLimit,
		trafficClass: av.TrafficClass, sl: av.SL, srcPathBits: av.SrcPathBits, staticRate: av.StaticRate,
		isGlobal: flag(av.IsGlobal), portNum: av.Port,
	}
}

func addressVector(d *qpDest) verbs.AddressVector {
	return verbs.AddressVector{
		DGID: d.dgid, SGIDIndex: d.sgidIndex, FlowLabel: d.flowLabel, HopLimit: d.hopLimit, TrafficClass: d.trafficClass,
		DLID: d.dlid, SL: d.sl, SrcPathBits: d.srcPathBits, StaticRate: d.staticRate, IsGlobal: d.isGlobal != 0, Port: d.portNum,
	}
}

// queryMask asks for everything.
const queryMask = 1<<21 - 1

func attrOf(q *queryQPOut) verbs.QPAttr {
	return verbs.QPAttr{
		State: verbs.QPState(q.qpState), CurState: verbs.QPState(q.curQPState), Access: verbs.Access(q.accessFlags),
		PKeyIndex: q.pkeyIndex, Port: q.portNum, QKey: q.qkey, AV: addressVector(&q.dest), AltAV: addressVector(&q.altDest),
		AltPKeyIndex: q.altPKeyIndex, AltPort: q.altPortNum, AltTimeout: q.altTimeout, PathMTU: verbs.MTU(q.pathMTU),
		Timeout: q.timeout, RetryCount: q.retryCnt, RNRRetry: q.rnrRetry, RQPSN: q.rqPSN, SQPSN: q.sqPSN,
		MaxRdAtomic: q.maxRdAtomic, MaxDestRdAtomic: q.maxDestRdAtomic, MinRNRTimer: q.minRNRTimer,
		PathMigState: q.pathMigState, SQDraining: q.sqDraining != 0, DestQPN: q.destQPNum,
		Cap: verbs.QPCap{
			MaxSendWR: int(int32(q.maxSendWR)), MaxRecvWR: int(int32(q.maxRecvWR)), MaxSendSGE: int(int32(q.maxSendSGE)),
			MaxRecvSGE: int(int32(q.maxRecvSGE)), MaxInline: int(int32(q.maxInline)),
		},
	}
}

// iwarpTransition says which transitions of an iWARP QP are the caller's: into
// INIT, and into ERR. The others the kernel's connection manager makes, and
// there is no way back to RESET (RFC 5040 and 5041 have no such states).
func iwarpTransition(from, to verbs.QPState) error {
	switch {
	case to == from, to == verbs.QPStateInit && from == verbs.QPStateReset, to == verbs.QPStateErr && from != verbs.QPStateReset:
		return nil
	case to == verbs.QPStateErr:
		return fmt.Errorf("%w: a QP in %v cannot fail", verbs.ErrInvalid, from)
	}
	return fmt.Errorf("%w: an iWARP QP goes from %v to %v by its connection manager only", verbs.ErrUnsupported, from, to)
}
