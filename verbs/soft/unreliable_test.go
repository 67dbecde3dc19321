//go:build linux

package soft_test

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// newUnreliableEnd is an end with a UC QP.
func newUnreliableEnd(t testing.TB) *end {
	t.Helper()
	e := newEnd(t, usual)
	require.NoError(t, e.qp.Close())
	var err error
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUC, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
	require.NoError(t, err)
	return e
}

// connectUnreliable brings the UC QP of e to RTS towards that of peer.
func connectUnreliable(t testing.TB, e, peer *end) {
	t.Helper()
	to, err := peer.address()
	require.NoError(t, err)
	require.NoError(t, e.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: verbs.AccessRemoteWrite},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	require.NoError(t, e.qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, AV: verbs.AddressVector{DGID: to.GID, IsGlobal: true, Port: 1}, DestQPN: to.QPN, PathMTU: verbs.MTU4096,
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN))
	require.NoError(t, e.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))
}

// newUnreliablePair is two ends with UC QPs, connected.
func newUnreliablePair(t testing.TB) (a, b *end) {
	t.Helper()
	a, b = newUnreliableEnd(t), newUnreliableEnd(t)
	connectUnreliable(t, a, b)
	connectUnreliable(t, b, a)
	return a, b
}

func state(t testing.TB, e *end) verbs.QPState {
	t.Helper()
	attr, err := e.qp.Query()
	require.NoError(t, err)
	return attr.State
}

// Who sends without acknowledgements does not learn that nobody is there.
func TestAnUnreliableQPOutlivesItsPeer(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newUnreliablePair(t)
		b.postRecv(t)
		send := verbs.SendWR{Opcode: verbs.OpSend}
		require.Equal(t, verbs.WCSuccess, a.post(t, send))
		require.Equal(t, verbs.WCSuccess, poll(t, b.recv, 1)[0].Status)
		require.NoError(t, b.qp.Close())
		for range 100 {
			require.Equal(t, verbs.WCSuccess, a.post(t, send))
			time.Sleep(100 * time.Microsecond)
		}
		require.Equal(t, verbs.QPStateRTS, state(t, a))
	})
}

// An unreliable QP goes on when its peer is gone, and nothing else would tell of what that has sent at last.
func TestAMessageOfAnUnreliablePeerThatDiedGivesItsEvent(t *testing.T) {
	soft.PairAsStrangers(t)
	a, b := newUnreliablePair(t)
	b.postRecv(t)
	require.Equal(t, verbs.WCSuccess, a.post(t, verbs.SendWR{Opcode: verbs.OpSend}))
	poll(t, b.recv, 1)
	b.postRecv(t)
	require.NoError(t, b.recv.Arm(false))
	ended := make(chan error, 1)
	go func() { ended <- b.ch.Wait(time.Now().Add(10 * time.Second)) }()
	hang.Parked(t, "(*channel).park")
	soft.DieUnheard(a.qp)
	require.NoError(t, <-ended)
	require.Equal(t, verbs.WCSuccess, poll(t, b.recv, 1)[0].Status)
}

// What the peer would refuse is lost, and what comes after it arrives.
func TestWhatAnUnreliablePeerRefusesIsLost(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newUnreliablePair(t)
		require.Equal(t, verbs.WCSuccess, a.post(t, writeByte(b.mr.Addr()-1, b.mr.RKey())))
		require.Equal(t, verbs.WCSuccess, a.post(t, writeByte(b.mr.Addr(), b.mr.RKey()+1)))
		b.postRecv(t)
		long := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 100)}}
		require.Equal(t, verbs.WCSuccess, a.post(t, long), "longer than the receive")
		require.Equal(t, verbs.WCSuccess, a.post(t, writeByte(b.mr.Addr(), b.mr.RKey())))
		require.Equal(t, verbs.WCSuccess, a.post(t, verbs.SendWR{Opcode: verbs.OpSend}))
		wc := poll(t, b.recv, 1)[0]
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.Zero(t, wc.ByteLen)
		require.Equal(t, byte(7), b.mr.Bytes()[0])
		require.Equal(t, verbs.QPStateRTS, state(t, b))
	})
}

// A lost message lets the next one go, also among those that waited for the peer.
func TestAllThatWaitedForAnUnreliablePeerComplete(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newUnreliableEnd(t), newUnreliableEnd(t)
		connectUnreliable(t, a, b)
		sends := make([]verbs.SendWR, 4)
		for i := range sends {
			sends[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		}
		_, err := a.qp.PostSend(sends)
		require.NoError(t, err)
		connectUnreliable(t, b, a) // without receives
		for i, wc := range poll(t, a.send, len(sends)) {
			require.EqualValues(t, i, wc.ID)
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
	})
}

// An error of its own takes an unreliable QP to SQE, where it receives, and back to
// RTS if it is told to go there.
func TestSendQueueErrorOfAnUnreliableQP(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		a, b := newUnreliablePair(t)
		bad := verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: a.mr.Addr() - 1, Length: 8, LKey: a.mr.LKey()}}}
		_, err := a.qp.PostSend([]verbs.SendWR{bad, {ID: 2, Opcode: verbs.OpSend}})
		require.NoError(t, err)
		wcs := poll(t, a.send, 2)
		require.Equal(t, verbs.WCLocProtErr, wcs[0].Status)
		require.Equal(t, verbs.WCWRFlushErr, wcs[1].Status)
		require.Equal(t, verbs.QPStateSQE, state(t, a))
		a.postRecv(t)
		require.Equal(t, verbs.WCSuccess, b.post(t, verbs.SendWR{Opcode: verbs.OpSend}))
		require.Equal(t, verbs.WCSuccess, poll(t, a.recv, 1)[0].Status)
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
		b.postRecv(t)
		require.Equal(t, verbs.WCSuccess, a.post(t, verbs.SendWR{Opcode: verbs.OpSend}))
		require.Equal(t, verbs.WCSuccess, poll(t, b.recv, 1)[0].Status)
	})
}

func TestAnUnreliableQPAnswersNothing(t *testing.T) {
	a, b := newUnreliablePair(t)
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap, verbs.OpAtomicWrite, verbs.OpFlush} {
		_, err := a.qp.PostSend([]verbs.SendWR{{Opcode: op, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}})
		require.ErrorIs(t, err, verbs.ErrInvalid, "%v", op)
	}
	srq, err := a.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
	require.NoError(t, err)
	_, err = a.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUC, SendCQ: a.send, RecvCQ: a.recv, SRQ: srq, Cap: usual.cap})
	require.ErrorIs(t, err, verbs.ErrUnsupported)
}
