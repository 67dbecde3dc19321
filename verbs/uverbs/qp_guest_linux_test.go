package uverbs_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

func TestWhatWasPostedInSQDIsSentThoughNothingIsSignaled(t *testing.T) {
	a, b := rxeEnds(t)
	require.NoError(t, a.QP.Modify(verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true},
		verbs.QPAttrState|verbs.QPAttrEnSQDNotify))
	ev, err := nextEvent(a.Ctx)
	require.NoError(t, err)
	require.Equal(t, verbs.EventSQDrained, ev.Type)
	wr := a.Send[0]
	wr.Flags = 0
	_, err = a.QP.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	require.NoError(t, a.QP.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
	require.Equal(t, verbs.WCSuccess, one(t, b.CQ).Status)
}

func TestFailedQPsWithoutReliabilityTakeAsManyRequestsAsBefore(t *testing.T) {
	ctx := open(t, "rxe0")
	for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUD} {
		qp, cq, ah := toItself(t, ctx, verbs.QPInitAttr{Type: typ})
		room := qp.Attr().Cap.MaxSendWR
		for round := range 3 {
			for i := range room {
				wr := verbs.SendWR{
					ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
					// there is no such region
					SGL: []verbs.SGE{{Addr: 4096, Length: 8, LKey: 0xbad}},
				}
				if typ == verbs.QPTypeUD {
					wr.Datagram = &verbs.Datagram{AH: ah, QPN: qp.Num()}
				}
				_, err := qp.PostSend([]verbs.SendWR{wr})
				require.NoError(t, err, "QP type %d, round %d, request %d", typ, round, i)
				require.NotEqual(t, verbs.WCSuccess, one(t, cq).Status)
			}
		}
		attr, err := qp.Query()
		require.NoError(t, err)
		require.NotEqual(t, verbs.QPStateSQE, attr.State, "now the way from SQE to RTS can be tested")
	}
}

func TestAKeyThatDoesNotExistIsNotTheEndOfAReceiverWithoutReliability(t *testing.T) {
	ctx := open(t, "rxe0")
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	require.NoError(t, err)
	qp, cq, _ := toItself(t, ctx, verbs.QPInitAttr{Type: verbs.QPTypeUC, SRQ: srq})
	mr, err := qp.PD().AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	for _, c := range []struct {
		rkey   uint32
		status verbs.WCStatus
	}{{0xbad, verbs.WCRemAccessErr}, {mr.RKey(), verbs.WCSuccess}} {
		_, err := srq.PostRecv([]verbs.RecvWR{{ID: 1}})
		require.NoError(t, err)
		_, err = qp.PostSend([]verbs.SendWR{{
			Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 16)},
			RemoteAddr: mr.Addr(), RKey: c.rkey,
		}})
		require.NoError(t, err)
		wc := one(t, cq)
		require.EqualValues(t, 1, wc.ID)
		require.Equal(t, c.status, wc.Status)
		attr, err := qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateRTS, attr.State)
	}
}

// toItself makes a QP that is ready to send to its own device.
func toItself(t *testing.T, ctx *verbs.Context, init verbs.QPInitAttr) (*verbs.QP, *verbs.CQ, *verbs.AH) {
	t.Helper()
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
	require.NoError(t, err)
	init.SendCQ, init.RecvCQ, init.Cap = cq, cq, verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxInline: 16}
	qp, err := pd.CreateQP(init)
	require.NoError(t, err)
	path, err := pingpong.PathOf(ctx)
	require.NoError(t, err)
	av := path.To(0, path.GID.GID)
	ah, err := pd.CreateAH(av)
	require.NoError(t, err)
	if init.Type == verbs.QPTypeUD {
		require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 1},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
		require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState))
	} else {
		require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: verbs.AccessRemoteWrite},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
		require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: qp.Num(), AV: av},
			verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN))
	}
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))
	return qp, cq, ah
}
