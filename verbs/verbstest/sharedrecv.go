package verbstest

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testSRQ has side b receive from a shared queue.
func testSRQ(t *testing.T, s *suite) {
	shared := usual
	shared.srq = &verbs.SRQAttr{MaxWR: 32, MaxSGE: 2}
	run := func(name string, conf config, f func(t *testing.T, a, b *side)) {
		t.Run(name, func(t *testing.T) {
			p := s.open(t)
			if !p.B.Attr().Caps.Has(verbs.CapSRQ) {
				t.Skip("the device has no SRQs")
			}
			one := &suite{open: func(testing.TB) Pair { return p }}
			a, b := one.connected(t, conf)
			f(t, a, b)
		})
	}
	send := func(a *side, id uint64, n int) verbs.SendWR {
		return verbs.SendWR{ID: id, Opcode: a.sendOp(), Imm: uint32(id), Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, n)}}
	}
	run("two QPs take receives in the order of arrival", shared, func(t *testing.T, a, b *side) {
		c, d := a.again(), b.again()
		join(c, d)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 64)}}, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{b.mr.SGE(64, 64)}})
		pattern(a.mr.Bytes()[:64], 1)
		a.post(send(a, 10, 64))
		b.received(1, verbs.WCSuccess)
		a.sent(10, verbs.WCSuccess)
		c.post(send(c, 11, 64))
		d.received(2, verbs.WCSuccess)
		c.sent(11, verbs.WCSuccess)
		require.Equal(t, a.mr.Bytes()[:64], b.mr.Bytes()[64:128])
	})
	run("messages wait while the SRQ is empty, and wake who sleeps", shared, func(t *testing.T, a, b *side) {
		a.requireRNR()
		a.post(send(a, 1, 8), a.write(b.mr.Addr()+4096, b.mr.RKey(), 8), send(a, 2, 8))
		var wcs [4]verbs.WC
		for range 20 {
			n, err := b.recv.Poll(wcs[:])
			require.NoError(t, err)
			require.Zero(t, n)
			time.Sleep(200 * time.Microsecond)
		}
		require.NoError(t, b.recv.Arm(false))
		n, err := b.recv.Poll(wcs[:])
		require.NoError(t, err)
		require.Zero(t, n)
		go func() {
			time.Sleep(2 * time.Millisecond)
			_, _ = b.srq.PostRecv([]verbs.RecvWR{ // the wait shows whether it worked
				{ID: 5, SGL: []verbs.SGE{b.mr.SGE(0, 8)}}, {ID: 6, SGL: []verbs.SGE{b.mr.SGE(8, 8)}},
			})
		}()
		require.NoError(t, b.ch.Wait(time.Now().Add(patience)))
		b.received(5, verbs.WCSuccess)
		b.received(6, verbs.WCSuccess)
		for _, id := range []uint64{1, 50, 2} {
			a.sent(id, verbs.WCSuccess)
		}
	})
	limited := shared
	limited.rnrRetry = 1
	run("the RNR retries of the sender come to an end", limited, func(t *testing.T, a, b *side) {
		a.requireRNR()
		a.post(send(a, 1, 8), send(a, 2, 8))
		var wcs [1]verbs.WC
		require.Eventually(t, func() bool {
			n, err := b.recv.Poll(wcs[:])
			require.NoError(t, err)
			require.Zero(t, n)
			q, err := a.qp.Query()
			return err == nil && q.State == verbs.QPStateErr
		}, patience, time.Millisecond)
		a.sent(1, verbs.WCRNRRetryExcErr)
		a.sent(2, verbs.WCWRFlushErr)
	})
	run("a receive too short fails both ends", shared, func(t *testing.T, a, b *side) {
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 7)}}, verbs.RecvWR{ID: 2})
		a.post(send(a, 1, 8))
		b.received(1, verbs.WCLocLenErr)
		a.refused(1, verbs.WCRemInvReqErr)
		b.awaitState(verbs.QPStateErr)
		b.silent(b.recv) // the second receive stays in the SRQ
	})
	run("the limit gives one event", shared, func(t *testing.T, a, b *side) {
		b.receive(receives(0, 4)...)
		require.NoError(t, b.srq.Modify(verbs.SRQAttr{Limit: 3}, verbs.SRQAttrLimit))
		for i := range uint64(3) {
			a.post(verbs.SendWR{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
			b.received(i, verbs.WCSuccess)
		}
		ev, err := b.event()
		require.NoError(t, err)
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: b.srq}, ev)
		attr, err := b.srq.Query()
		require.NoError(t, err)
		require.Zero(t, attr.Limit, "it has to be set again")
	})
	run("its receives lead to memory on demand", shared, func(t *testing.T, a, b *side) {
		if attr := b.ctx.Attr(); !attr.Caps.Has(verbs.CapOnDemandPaging) || !attr.ODP.RC.Has(verbs.ODPSRQRecv) {
			t.Skip("the device pins it")
		}
		mr, err := b.pd.AllocMR(b.conf.memory, verbs.AccessLocalWrite|verbs.AccessOnDemand, verbs.MROptions{})
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 64)}}, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{mr.SGE(64, 64)}})
		want := pattern(a.mr.Bytes()[:64], 5)
		a.post(send(a, 10, 64), send(a, 11, 64))
		wcs := b.poll(b.recv, 2) // a device that used the first up for nothing has it posted again, behind the second
		a.sent(10, verbs.WCSuccess)
		a.sent(11, verbs.WCSuccess)
		require.EqualValues(t, 3, wcs[0].ID+wcs[1].ID)
		for _, wc := range wcs {
			require.Equal(t, verbs.WCSuccess, wc.Status)
			require.Equal(t, want, mr.Bytes()[64*(wc.ID-1):][:64])
		}
	})
	low := shared
	low.srq = &verbs.SRQAttr{MaxWR: 8, MaxSGE: 2, Limit: 2}
	run("the limit that it was made with gives one event", low, func(t *testing.T, a, b *side) {
		b.receive(receives(0, 2)...)
		a.post(send(a, 0, 0))
		b.received(0, verbs.WCSuccess)
		ev, err := b.event()
		require.NoError(t, err)
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: b.srq}, ev)
	})
	run("it takes what it was made for", shared, func(t *testing.T, a, b *side) {
		attr, err := b.srq.Query()
		require.NoError(t, err)
		bound := attr.MaxWR
		if b.pair.Lacks&LackSRQBound != 0 {
			bound = 4 * attr.MaxWR
		}
		n, err := b.srq.PostRecv(receives(0, bound+1))
		require.GreaterOrEqual(t, n, attr.MaxWR)
		require.LessOrEqual(t, n, bound)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		require.ErrorIs(t, b.srq.Close(), verbs.ErrBusy)
	})
	run("it is resized with receives in it, if the device can", shared, func(t *testing.T, a, b *side) {
		attr, err := b.srq.Query()
		require.NoError(t, err)
		b.receive(receives(0, 3)...)
		want := min(2*attr.MaxWR, b.ctx.Attr().MaxSRQWR)
		if err := b.srq.Modify(verbs.SRQAttr{MaxWR: want}, verbs.SRQAttrMaxWR); err != nil {
			// for whose library it is the size that is wrong
			if b.ctx.Attr().Provider != "ibverbs" {
				require.ErrorIs(t, err, verbs.ErrUnsupported)
			}
			t.Skip("it cannot")
		}
		attr, err = b.srq.Query()
		require.NoError(t, err)
		require.GreaterOrEqual(t, attr.MaxWR, want)
		b.receive(receives(3, want-3)...)
		for id := range uint64(want) {
			a.post(send(a, id, 0))
			b.received(id, verbs.WCSuccess)
			a.sent(id, verbs.WCSuccess)
		}
	})
	run("what cannot be is refused", shared, func(t *testing.T, a, b *side) {
		dev := b.ctx.Attr()
		for name, attr := range map[string]verbs.SRQAttr{
			"no receives":       {MaxSGE: 1},
			"too many receives": {MaxWR: dev.MaxSRQWR + 1, MaxSGE: 1},
			"too many SGEs":     {MaxWR: 1, MaxSGE: dev.MaxSRQSGE + 1},
			"negative SGEs":     {MaxWR: 1, MaxSGE: -1},
			"a negative limit":  {MaxWR: 1, MaxSGE: 1, Limit: -1},
			"a limit too large": {MaxWR: 1, MaxSGE: 1, Limit: 2},
		} {
			_, err := b.pd.CreateSRQ(attr)
			require.ErrorIs(t, err, verbs.ErrInvalid, name)
		}
		for name, c := range map[string]struct {
			attr verbs.SRQAttr
			mask verbs.SRQAttrMask
		}{
			"no size":           {verbs.SRQAttr{}, verbs.SRQAttrMaxWR},
			"too large":         {verbs.SRQAttr{MaxWR: dev.MaxSRQWR + 1}, verbs.SRQAttrMaxWR},
			"negative limit":    {verbs.SRQAttr{Limit: -1}, verbs.SRQAttrLimit},
			"limit too large":   {verbs.SRQAttr{Limit: dev.MaxSRQWR + 1}, verbs.SRQAttrLimit},
			"unknown attribute": {verbs.SRQAttr{}, 1 << 2},
		} {
			require.ErrorIs(t, b.srq.Modify(c.attr, c.mask), verbs.ErrInvalid, name)
		}
		n, err := b.srq.PostRecv([]verbs.RecvWR{{}, {SGL: make([]verbs.SGE, dev.MaxSRQSGE+1)}, {}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.Equal(t, 1, n, "the one before it was posted")
		_, err = b.qp.PostRecv([]verbs.RecvWR{{}})
		require.ErrorIs(t, err, verbs.ErrInvalid, "its receives come from the SRQ")
		_, err = a.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: a.send, RecvCQ: a.recv, SRQ: b.srq, SingleThreaded: a.conf.single, Cap: usual.cap})
		require.ErrorIs(t, err, verbs.ErrInvalid, "SRQ of another device")
	})
	run("many messages of all sizes get through a small SRQ", shared, func(t *testing.T, a, b *side) {
		const n = 300
		size := func(i int) int { return (i * 7919) % 100_000 }
		slot := func(i int) verbs.RecvWR {
			return verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{b.mr.SGE((i%8)*131072, 131072)}}
		}
		for i := range 8 {
			b.receive(slot(i))
		}
		most := 32
		if a.iwarp() {
			most = 8 // as many as there are receives
		}
		pattern(a.mr.Bytes()[:100_000], 77)
		posted, acked, got := 0, 0, 0
		var wcs [8]verbs.WC
		for deadline := time.Now().Add(patience); got < n || acked < n; {
			require.True(t, time.Now().Before(deadline), "%d posted, %d completed, %d received", posted, acked, got)
			for posted < n && posted-acked < most && (!a.iwarp() || posted-got < most) {
				a.post(send(a, uint64(posted), size(posted)))
				posted++
			}
			k, err := a.send.Poll(wcs[:])
			require.NoError(t, err)
			for _, wc := range wcs[:k] {
				require.Equal(t, verbs.WCSuccess, wc.Status)
				require.EqualValues(t, acked, wc.ID)
				acked++
			}
			k, err = b.recv.Poll(wcs[:])
			require.NoError(t, err)
			for _, wc := range wcs[:k] {
				require.Equal(t, verbs.WCSuccess, wc.Status)
				b.requireImm(uint32(got), wc)
				require.EqualValues(t, size(got), wc.ByteLen)
				at := (int(wc.ID) % 8) * 131072
				require.Equal(t, a.mr.Bytes()[:wc.ByteLen], b.mr.Bytes()[at:at+int(wc.ByteLen)])
				b.receive(slot(int(wc.ID) + 8))
				got++
			}
		}
	})
}

func testInvalidate(t *testing.T, s *suite) {
	t.Run("SEND_WITH_INV takes the rkey away", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireCap(verbs.OpSendWithInv)
		if a.pair.Lacks&LackRegionInvalidation != 0 {
			t.Skip("this device takes the keys of windows away only")
		}
		mr, err := b.pd.AllocMR(4096, everyRight, verbs.MROptions{})
		require.NoError(t, err)
		a.post(a.write(mr.Addr(), mr.RKey(), 8))
		a.sent(50, verbs.WCSuccess)
		b.receive(verbs.RecvWR{ID: 1})
		a.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSendWithInv, Flags: verbs.SendSignaled, InvalidateRKey: mr.RKey()})
		wc := b.received(1, verbs.WCSuccess)
		if !b.iwarp() { // siw does not say it
			require.NotZero(t, wc.Flags&verbs.WCWithInv)
			require.Equal(t, mr.RKey(), wc.Imm)
		}
		a.sent(2, verbs.WCSuccess)
		a.post(a.write(mr.Addr(), mr.RKey(), 8))
		a.refused(50, verbs.WCRemAccessErr)
	})
	t.Run("a key of another PD cannot be taken away", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.requireCap(verbs.OpSendWithInv)
		if a.pair.Lacks&LackRegionInvalidation != 0 {
			t.Skip("this device takes the keys of windows away only")
		}
		pd, err := b.ctx.AllocPD()
		require.NoError(t, err)
		mr, err := pd.AllocMR(4096, everyRight, verbs.MROptions{})
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 1})
		a.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSendWithInv, Flags: verbs.SendSignaled, InvalidateRKey: mr.RKey()})
		if a.iwarp() {
			b.received(1, verbs.WCRemInvReqErr)
			a.refused(2, verbs.WCRemAccessErr)
		} else {
			wc := a.poll(a.send, 1)[0]
			require.Contains(t, []verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr}, wc.Status)
		}
		b.awaitState(verbs.QPStateErr)
	})
}
