package verbstest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testQueues fills queues.
func testQueues(t *testing.T, s *suite) {
	t.Run("the receive queue takes what it was made for", func(t *testing.T) {
		a, _ := s.connected(t, usual)
		depth := a.qp.Attr().Cap.MaxRecvWR
		require.GreaterOrEqual(t, depth, usual.cap.MaxRecvWR)
		n, err := a.qp.PostRecv(receives(0, depth+3))
		require.Equal(t, depth, n)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
	})
	t.Run("the send queue takes what it was made for", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireRNR()
		depth := a.qp.Attr().Cap.MaxSendWR
		require.GreaterOrEqual(t, depth, usual.cap.MaxSendWR)
		wrs := make([]verbs.SendWR, depth+3) // b has no receive: they wait
		for i := range wrs {
			wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		}
		n, err := a.qp.PostSend(wrs)
		require.Equal(t, depth, n)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		b.receive(receives(0, min(depth, usual.cap.MaxRecvWR))...)
		a.sent(0, verbs.WCSuccess)
		a.post(verbs.SendWR{Opcode: verbs.OpSend}) // one slot is free again
	})
	t.Run("completions that nobody polls hold their slots", func(t *testing.T) {
		conf := usual
		conf.cqe = usual.cap.MaxSendWR
		a, b := s.connected(t, conf)
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		depth := a.qp.Attr().Cap.MaxSendWR
		posted := 0
		for range 2 * depth {
			n, err := a.qp.PostSend([]verbs.SendWR{wr})
			if err != nil {
				require.ErrorIs(t, err, verbs.ErrQueueFull)
				break
			}
			posted += n
		}
		require.LessOrEqual(t, posted, depth)
		for _, wc := range a.poll(a.send, posted) {
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
	})
	t.Run("two QPs share a CQ fairly", func(t *testing.T) {
		a, b := s.connected(t, usual)
		c, d := a.again(), b.again()
		join(c, d)
		b.receive(receives(0, 40)...)
		d.receive(receives(100, 40)...)
		for range 40 {
			a.post(verbs.SendWR{Opcode: verbs.OpSend})
			c.post(verbs.SendWR{Opcode: verbs.OpSend})
		}
		a.post(a.write(b.mr.Addr(), b.mr.RKey(), 8))
		c.post(c.write(d.mr.Addr(), d.mr.RKey(), 8))
		a.poll(a.send, 2) // all have arrived, or are under way
		seen := map[uint32]int{}
		for _, wc := range b.poll(b.recv, 80) {
			require.Equal(t, verbs.WCSuccess, wc.Status)
			seen[wc.QPN]++
		}
		require.Equal(t, map[uint32]int{b.qp.Num(): 40, d.qp.Num(): 40}, seen)
	})
	t.Run("a CQ is resized with completions in it", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapResizeCQ) {
			t.Skip("the device cannot resize CQs")
		}
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		for i := range uint64(10) {
			wr.ID = i
			a.post(wr)
		}
		a.poll(a.send, 2)
		require.NoError(t, a.send.Resize(1000))
		require.GreaterOrEqual(t, a.send.Cap(), 1000)
		for i := range uint64(8) {
			a.sent(2+i, verbs.WCSuccess)
		}
	})
	t.Run("a CQ is not made smaller than what waits in it", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapResizeCQ) {
			t.Skip("the device cannot resize CQs")
		}
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		for i := range uint64(40) {
			wr.ID = i
			a.post(wr)
			if i == 0 { // the key is known after it: those that follow complete as they are posted
				a.sent(0, verbs.WCSuccess)
			}
		}
		if a.ctx.Attr().Transport != verbs.TransportSoft {
			// All has been begun when the SEND has come, and all but one are completed when the send
			// queue is drained: rxe says that it is before the last completion comes.
			b.receive(verbs.RecvWR{ID: 1})
			a.post(verbs.SendWR{ID: 40, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
			b.received(1, verbs.WCSuccess)
			require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true},
				verbs.QPAttrState|verbs.QPAttrEnSQDNotify))
			ev, err := a.event()
			require.NoError(t, err)
			require.Equal(t, verbs.EventSQDrained, ev.Type)
		}
		require.ErrorIs(t, a.send.Resize(38), verbs.ErrInvalid)
		require.NoError(t, a.send.Resize(40))
		if a.ctx.Attr().Transport == verbs.TransportSoft {
			require.NoError(t, a.send.Resize(39))
		}
		for i := range uint64(39) {
			a.sent(1+i, verbs.WCSuccess)
		}
	})
	t.Run("a CQ is resized while completions come", func(t *testing.T) {
		a, b := s.connected(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapResizeCQ) {
			t.Skip("the device cannot resize CQs")
		}
		const n = 2000
		stop := make(chan struct{})
		var resizes sync.WaitGroup
		resizes.Go(func() {
			for size := 64; ; size = 64 + (size*7)%900 {
				select { // never waits
				case <-stop:
					return
				default:
				}
				// It is refused where more completions wait than that.
				if err := a.send.Resize(size); err != nil && !errors.Is(err, verbs.ErrInvalid) {
					t.Error(err)
					return
				}
				time.Sleep(200 * time.Microsecond)
			}
		})
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		next := uint64(0)
		var wcs [7]verbs.WC
		for posted, deadline := uint64(0), time.Now().Add(patience); next < n; {
			for posted < n && posted-next < 40 {
				wr.ID = posted
				a.post(wr)
				posted++
			}
			k, err := a.send.Poll(wcs[:])
			require.NoError(t, err)
			for _, wc := range wcs[:k] {
				require.Equal(t, verbs.WCSuccess, wc.Status)
				require.Equal(t, next, wc.ID)
				next++
			}
			require.True(t, time.Now().Before(deadline), "%d of %d completions came", next, n)
		}
		close(stop)
		resizes.Wait() // ends with stop
	})
}

// again is a second QP beside that of s, on the same CQs and PD.
func (s *side) again() *side {
	other := *s
	other.qp = s.newQP()
	return &other
}
