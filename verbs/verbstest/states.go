package verbstest

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testStates walks the state machine.
func testStates(t *testing.T, s *suite) {
	t.Run("posts are refused where the state forbids them", func(t *testing.T) {
		a, b := s.sides(t, usual)
		_, err := a.qp.PostRecv(receives(0, 1))
		require.ErrorIs(t, err, verbs.ErrInvalid, "a receive in RESET")
		noSend := func(state string) {
			t.Helper()
			_, err := a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
			require.ErrorIs(t, err, verbs.ErrInvalid, "a send in %s", state)
		}
		noSend("RESET")
		a.toInit()
		noSend("INIT")
		a.receive(receives(0, 1)...)
		a.toRTR(b)
		noSend("RTR")
		a.receive(receives(1, 1)...)
		a.toRTS()
	})
	t.Run("Query reports what Modify set", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireAcks() // what is queried are the parameters of acknowledgements
		got, err := a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateRTS, got.State)
		require.Equal(t, b.qp.Num(), got.DestQPN)
		require.Equal(t, usual.retry, got.RetryCount)
		require.Equal(t, usual.timeout, got.Timeout)
		require.Equal(t, usual.minRNR, got.MinRNRTimer)
		require.EqualValues(t, 1, got.Port)
		require.GreaterOrEqual(t, got.Cap.MaxSendWR, usual.cap.MaxSendWR)
	})
	t.Run("a QP in RTR receives", func(t *testing.T) {
		a, b := s.sides(t, usual)
		a.toInit()
		a.receive(receives(5, 1)...)
		a.toRTR(b)
		b.connect(a)
		b.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		b.sent(1, verbs.WCSuccess)
		a.received(5, verbs.WCSuccess)
	})
	t.Run("what is posted before the peer is ready waits for it", func(t *testing.T) {
		a, b := s.sides(t, usual)
		a.connect(b)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		time.Sleep(5 * time.Millisecond)
		a.silent(a.send)
		b.toInit()
		b.receive(receives(5, 1)...)
		b.toRTR(a)
		a.sent(1, verbs.WCSuccess)
		b.received(5, verbs.WCSuccess)
	})
	t.Run("RESET drops everything, and the QPs can be connected again", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if a.pair.Connect != nil {
			t.Skip("QPs of this device are connected once")
		}
		reset := func(s *side) {
			require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
		}
		for i := range uint64(3) {
			b.receive(receives(10*i, 4)...)
			a.post(verbs.SendWR{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
			a.sent(i, verbs.WCSuccess)
			b.received(10*i, verbs.WCSuccess)
			require.NoError(t, a.qp.Fail())
			reset(a)
			reset(b)
			a.silent(a.send)
			b.silent(b.recv)
			a.connect(b)
			b.connect(a)
		}
	})
	t.Run("SQD holds requests back until RTS", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if a.pair.Connect != nil {
			t.Skip("QPs of this device have no SQD")
		}
		if a.pair.Lacks&LackResume != 0 {
			t.Skip("nothing makes this device look at what was posted in SQD")
		}
		b.receive(receives(0, 2)...)
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true},
			verbs.QPAttrState|verbs.QPAttrEnSQDNotify))
		ev, err := a.event()
		require.NoError(t, err)
		require.Equal(t, verbs.EventSQDrained, ev.Type)
		require.Equal(t, a.qp.Num(), ev.QPN)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		b.post(b.write(a.mr.Addr(), a.mr.RKey(), 8)) // the other direction goes on
		b.sent(50, verbs.WCSuccess)
		a.silent(a.send)
		b.silent(b.recv)
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
		a.sent(1, verbs.WCSuccess)
		b.received(0, verbs.WCSuccess)
	})
	t.Run("INIT to INIT changes what peers may do", func(t *testing.T) {
		conf := usual
		conf.qpAccess = noAccess
		a, b := s.sides(t, conf)
		a.toInit()
		b.toInit()
		require.NoError(t, b.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Access: b.rights()}, verbs.QPAttrState|verbs.QPAttrAccess))
		got, err := b.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateInit, got.State)
		a.toRTR(b)
		b.toRTR(a)
		a.toRTS()
		b.toRTS()
		a.post(a.write(b.mr.Addr(), b.mr.RKey(), 8))
		a.sent(50, verbs.WCSuccess)
		b.post(b.write(a.mr.Addr(), a.mr.RKey(), 8))
		b.refused(50, verbs.WCRemInvReqErr)
	})
	t.Run("SQD to SQD changes how requests are repeated", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if a.pair.Connect != nil {
			t.Skip("QPs of this device have no SQD")
		}
		if a.pair.Lacks&LackResume != 0 {
			t.Skip("nothing makes this device look at what was posted in SQD")
		}
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true},
			verbs.QPAttrState|verbs.QPAttrEnSQDNotify))
		ev, err := a.event()
		require.NoError(t, err)
		require.Equal(t, verbs.EventSQDrained, ev.Type)
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD, Timeout: 16, RetryCount: 3, RNRRetry: 2},
			verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry))
		got, err := a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, []uint8{16, 3, 2}, []uint8{got.Timeout, got.RetryCount, got.RNRRetry})
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		a.post(wr)
		b.receive(receives(0, 1)...)
		b.post(b.write(a.mr.Addr(), a.mr.RKey(), 8))
		b.sent(50, verbs.WCSuccess)
		a.silent(a.send) // it is in SQD still
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
		a.sent(50, verbs.WCSuccess)
	})
	t.Run("transitions that do not exist are refused", func(t *testing.T) {
		a, _ := s.connected(t, usual)
		for _, to := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateSQE} {
			err := a.qp.Modify(verbs.QPAttr{State: to}, verbs.QPAttrState)
			if a.pair.Connect != nil {
				require.ErrorIs(t, err, verbs.ErrUnsupported, "%v", to)
			} else {
				require.ErrorIs(t, err, verbs.ErrInvalid, "%v", to)
			}
		}
	})
	t.Run("an access error is an event at the responder", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if a.pair.Lacks&LackAccessEvent != 0 {
			t.Skip("this device raises no such event")
		}
		a.post(a.write(b.mr.Addr()-8, b.mr.RKey(), 8))
		a.refused(50, verbs.WCRemAccessErr)
		ev, err := b.event()
		require.NoError(t, err)
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPAccessErr, QPN: b.qp.Num()}, ev)
	})
}
