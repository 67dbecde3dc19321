package verbstest

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testRNR has requests meet a peer without receives.
func testRNR(t *testing.T, s *suite) {
	send := func(a *side, id uint64) verbs.SendWR {
		return verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 16)}}
	}
	t.Run("a SEND waits for the receive", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireRNR()
		pattern(a.mr.Bytes()[:16], 9)
		a.post(send(a, 1))
		time.Sleep(5 * time.Millisecond) // some RNR timers
		a.silent(a.send)
		b.receive(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{b.mr.SGE(0, 16)}})
		b.received(2, verbs.WCSuccess)
		a.sent(1, verbs.WCSuccess)
		require.Equal(t, pattern(make([]byte, 16), 9), b.mr.Bytes()[:16])
	})
	t.Run("nothing overtakes a request that waits", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireRNR()
		inline := []byte("as it was posted")
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: [][]byte{inline}},
			a.write(b.mr.Addr()+64, b.mr.RKey(), 8), send(a, 3))
		clear(inline) // the caller may reuse it
		time.Sleep(5 * time.Millisecond)
		a.silent(a.send)
		b.receive(verbs.RecvWR{ID: 7, SGL: []verbs.SGE{b.mr.SGE(0, 16)}}, verbs.RecvWR{ID: 8, SGL: []verbs.SGE{b.mr.SGE(32, 16)}})
		for _, id := range []uint64{1, 50, 3} {
			a.sent(id, verbs.WCSuccess)
		}
		b.received(7, verbs.WCSuccess)
		b.received(8, verbs.WCSuccess)
		require.Equal(t, "as it was posted", string(b.mr.Bytes()[:16]))
	})
	t.Run("the retries come to an end", func(t *testing.T) {
		conf := usual
		conf.rnrRetry = 2
		a, b := s.connected(t, conf)
		a.requireRNR()
		a.post(send(a, 1), send(a, 2))
		a.sent(1, verbs.WCRNRRetryExcErr)
		a.sent(2, verbs.WCWRFlushErr)
		a.awaitState(verbs.QPStateErr)
		b.silent(b.recv)
	})
	t.Run("a receive for each message and no more is used", func(t *testing.T) {
		a, b := s.connected(t, usual)
		b.receive(receives(100, 5)...)
		for i := range uint64(5) {
			a.post(verbs.SendWR{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		}
		for i := range uint64(5) {
			b.received(100+i, verbs.WCSuccess)
			a.sent(i, verbs.WCSuccess)
		}
		b.silent(b.recv)
	})
	t.Run("a message without receive ends an iWARP connection", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !a.iwarp() {
			t.Skip("it waits on this device")
		}
		a.post(send(a, 1))
		a.awaitState(verbs.QPStateErr)
		b.awaitState(verbs.QPStateErr)
	})
}

// testFlush has QPs fail with work outstanding.
func testFlush(t *testing.T, s *suite) {
	t.Run("Fail flushes the receives in order", func(t *testing.T) {
		a, _ := s.connected(t, usual)
		a.receive(receives(10, 4)...)
		require.NoError(t, a.qp.Fail())
		for i := range uint64(4) {
			a.received(10+i, verbs.WCWRFlushErr)
		}
		a.silent(a.send)
		a.silent(a.recv)
	})
	t.Run("Fail flushes both queues in order", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireRNR()
		a.receive(receives(10, 4)...)
		for i := range uint64(4) { // b has no receive
			a.post(verbs.SendWR{ID: i, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		}
		require.NoError(t, a.qp.Fail())
		for i := range uint64(4) {
			a.sent(i, verbs.WCWRFlushErr)
			a.received(10+i, verbs.WCWRFlushErr)
		}
		a.silent(a.send)
		a.silent(a.recv)
		b.silent(b.recv)
	})
	t.Run("what is posted in ERR is flushed", func(t *testing.T) {
		a, _ := s.connected(t, usual)
		require.NoError(t, a.qp.Fail())
		a.receive(receives(10, 2)...)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend})
		a.received(10, verbs.WCWRFlushErr)
		a.received(11, verbs.WCWRFlushErr)
		a.sent(1, verbs.WCWRFlushErr)
	})
	t.Run("what came before the peer failed is delivered", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireAcks()
		b.receive(receives(10, 6)...)
		for i := range uint64(4) {
			a.post(verbs.SendWR{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		}
		for i := range uint64(4) {
			a.sent(i, verbs.WCSuccess)
		}
		require.NoError(t, a.qp.Fail())
		require.NoError(t, b.qp.Fail())
		for i := range uint64(4) {
			b.received(10+i, verbs.WCSuccess)
		}
		b.received(14, verbs.WCWRFlushErr)
		b.received(15, verbs.WCWRFlushErr)
	})
	t.Run("a request to a QP that is gone fails", func(t *testing.T) {
		conf := usual
		conf.retry, conf.timeout = 1, 10
		a, b := s.connected(t, conf)
		a.post(a.write(b.mr.Addr(), b.mr.RKey(), 8))
		a.sent(50, verbs.WCSuccess)
		require.NoError(t, b.qp.Close())
		a.post(a.write(b.mr.Addr(), b.mr.RKey(), 8))
		wc := a.poll(a.send, 1)[0]
		if !a.iwarp() || wc.Status != verbs.WCSuccess { // TCP may have taken it yet
			require.Contains(t, []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCWRFlushErr}, wc.Status)
		}
		a.awaitState(verbs.QPStateErr)
	})
	t.Run("a request to a QP that never was fails", func(t *testing.T) {
		conf := usual
		conf.retry, conf.timeout = 1, 10
		a, b := s.sides(t, conf)
		a.requireAcks()
		require.NoError(t, b.qp.Close())
		a.connect(b)
		a.post(verbs.SendWR{ID: 50, Opcode: verbs.OpSend}, verbs.SendWR{ID: 51, Opcode: verbs.OpSend})
		a.sent(50, verbs.WCRetryExcErr)
		a.sent(51, verbs.WCWRFlushErr)
	})
}
