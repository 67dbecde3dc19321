package verbstest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// domains makes two sides of which a has an initiator, and b a domain with the target that that is
// connected with, and an SRQ. If file is not nil the domain is that of it.
func (s *suite) domains(t testing.TB, file *os.File) (a, b *side, domain *verbs.XRCDomain) {
	t.Helper()
	if !s.open(t).A.Attr().Caps.Has(verbs.CapXRC) {
		t.Skip("the device has no XRC domains")
	}
	a, b = s.sides(t, usual)
	require.NoError(t, a.qp.Close())
	require.NoError(t, b.qp.Close())
	sizes := usual.cap
	sizes.MaxRecvWR, sizes.MaxRecvSGE = 0, 0
	var err error
	a.qp, err = a.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCInitiator, SendCQ: a.send, Cap: sizes})
	require.NoError(t, err)
	domain, err = b.ctx.OpenXRCDomain(file)
	require.NoError(t, err)
	b.qp, err = domain.CreateQP()
	require.NoError(t, err)
	b.srq, err = domain.CreateSRQ(b.pd, b.recv, verbs.SRQAttr{MaxWR: 32, MaxSGE: 2})
	require.NoError(t, err)
	require.NotZero(t, b.srq.Num())
	join(a, b)
	return a, b, domain
}

// testXRC sends to SRQs of XRC domains.
func testXRC(t *testing.T, s *suite) {
	t.Run("a device without it refuses", func(t *testing.T) {
		p := s.open(t)
		if p.A.Attr().Caps.Has(verbs.CapXRC) {
			t.Skip("the device has XRC domains")
		}
		_, err := p.A.OpenXRCDomain(nil)
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		a := newSide(t, p.A, p.GIDIndexA, usual)
		for _, typ := range []verbs.QPType{verbs.QPTypeXRCInitiator, verbs.QPTypeXRCTarget} {
			_, err = a.pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: a.send})
			require.ErrorIs(t, err, verbs.ErrUnsupported)
		}
	})
	t.Run("a message finds the SRQ that it names", func(t *testing.T) {
		a, b, domain := s.domains(t, nil)
		second := *b
		var err error
		second.recv, err = b.ctx.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
		require.NoError(t, err)
		second.srq, err = domain.CreateSRQ(b.pd, second.recv, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
		require.NoError(t, err)
		require.NotEqual(t, b.srq.Num(), second.srq.Num())
		want := pattern(a.mr.Bytes()[:3000], 5)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 3000)}}, verbs.RecvWR{ID: 2})
		second.receive(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{b.mr.SGE(4096, 100)}})
		a.post(verbs.SendWR{ID: 10, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num(), SGL: []verbs.SGE{a.mr.SGE(0, 3000)}})
		batch := a.qp.NewSendBatch(2)
		batch.Start()
		batch.ID, batch.Flags = 11, verbs.SendSignaled
		batch.SendImm(0x1234)
		batch.SetRemoteSRQ(second.srq.Num())
		batch.SetInline([]byte("inline"))
		batch.ID = 12
		batch.SendImm(0x5678)
		batch.SetRemoteSRQ(b.srq.Num())
		_, err = batch.Complete()
		require.NoError(t, err)
		wc := b.received(1, verbs.WCSuccess)
		require.EqualValues(t, 3000, wc.ByteLen)
		require.Zero(t, wc.Flags)
		require.Equal(t, want, b.mr.Bytes()[:3000])
		wc = second.received(3, verbs.WCSuccess)
		require.Equal(t, verbs.WCWithImm, wc.Flags)
		require.EqualValues(t, 0x1234, wc.Imm)
		require.Equal(t, "inline", string(b.mr.Bytes()[4096:][:6]))
		require.EqualValues(t, 0x5678, b.received(2, verbs.WCSuccess).Imm)
		for id := range uint64(3) {
			require.Equal(t, verbs.WCSend, a.sent(10+id, verbs.WCSuccess).Opcode)
		}
	})
	t.Run("WRITE and READ reach the memory of the SRQ's PD", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		writeAndRead(t, a, b)
	})
	t.Run("a message goes between regions of relaxed ordering", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		relax(a, b)
		want := pattern(a.mr.Bytes()[:5000], 3)
		b.receive(verbs.RecvWR{ID: 4, SGL: []verbs.SGE{b.mr.SGE(8192, 5000)}})
		a.post(verbs.SendWR{ID: 5, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num(), SGL: []verbs.SGE{a.mr.SGE(0, 5000)}})
		require.EqualValues(t, 5000, b.received(4, verbs.WCSuccess).ByteLen)
		a.sent(5, verbs.WCSuccess)
		require.Equal(t, want, b.mr.Bytes()[8192:][:5000])
		writeAndRead(t, a, b)
	})
	t.Run("memory is paged in on demand, but for receives", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		if attr := a.ctx.Attr(); !attr.Caps.Has(verbs.CapOnDemandPaging) || !attr.ODP.XRC.Has(verbs.ODPSend|verbs.ODPWrite|verbs.ODPRead) {
			t.Skip("the device pins all memory of such QPs")
		}
		pinned := b.mr
		for _, end := range []*side{a, b} {
			var err error
			end.mr, err = end.pd.AllocMR(1<<20, everyRight|verbs.AccessOnDemand, verbs.MROptions{})
			require.NoError(t, err)
		}
		writeAndRead(t, a, b)
		want := pattern(a.mr.Bytes()[:100], 3)
		b.receive(verbs.RecvWR{ID: 4, SGL: []verbs.SGE{pinned.SGE(0, 100)}})
		a.post(verbs.SendWR{ID: 5, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num(), SGL: []verbs.SGE{a.mr.SGE(0, 100)}})
		b.received(4, verbs.WCSuccess)
		a.sent(5, verbs.WCSuccess)
		require.Equal(t, want, pinned.Bytes()[:100])
	})
	t.Run("atomics work on the memory of the SRQ's PD", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		a.requireCap(verbs.OpFetchAdd)
		binary.NativeEndian.PutUint64(b.mr.Bytes()[16:], 40)
		batch := a.qp.NewSendBatch(2)
		batch.Flags = verbs.SendSignaled
		batch.FetchAdd(b.mr.RKey(), b.mr.Addr()+16, 2)
		batch.SetRemoteSRQ(b.srq.Num())
		batch.SetSGE(a.mr.SGE(0, 8))
		batch.CompareSwap(b.mr.RKey(), b.mr.Addr()+16, 42, 7)
		batch.SetRemoteSRQ(b.srq.Num())
		batch.SetSGE(a.mr.SGE(8, 8))
		_, err := batch.Complete()
		require.NoError(t, err)
		require.Equal(t, verbs.WCFetchAdd, a.sent(0, verbs.WCSuccess).Opcode)
		require.Equal(t, verbs.WCCompareSwap, a.sent(0, verbs.WCSuccess).Opcode)
		require.EqualValues(t, 40, binary.NativeEndian.Uint64(a.mr.Bytes()))
		require.EqualValues(t, 42, binary.NativeEndian.Uint64(a.mr.Bytes()[8:]))
		require.EqualValues(t, 7, binary.NativeEndian.Uint64(b.mr.Bytes()[16:]))
	})
	t.Run("memory of another PD is out of reach", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		pd, err := b.ctx.AllocPD()
		require.NoError(t, err)
		mr, err := pd.AllocMR(4096, everyRight, verbs.MROptions{})
		require.NoError(t, err)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num(), RKey: mr.RKey(), RemoteAddr: mr.Addr(),
			SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		a.refused(1, verbs.WCRemAccessErr)
		b.awaitState(verbs.QPStateErr)
	})
	t.Run("a number of no SRQ is refused", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num() ^ 0x800000}, verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
		a.refused(1, verbs.WCRemInvReqErr)
		a.sent(2, verbs.WCWRFlushErr)
		b.awaitState(verbs.QPStateErr)
		b.silent(b.recv)
	})
	t.Run("messages wait while the SRQ is empty, and wake who sleeps", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num(), SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		require.NoError(t, b.recv.Arm(false))
		b.silent(b.recv)
		b.receive(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{b.mr.SGE(0, 8)}})
		require.NoError(t, b.ch.Wait(time.Now().Add(patience)))
		b.received(5, verbs.WCSuccess)
		a.sent(1, verbs.WCSuccess)
	})
	t.Run("a receive too short fails both ends", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 7)}}, verbs.RecvWR{ID: 2})
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, RemoteSRQ: b.srq.Num(), SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		b.received(1, verbs.WCLocLenErr)
		a.refused(1, verbs.WCRemInvReqErr)
		b.awaitState(verbs.QPStateErr)
		b.silent(b.recv) // the second receive stays in the SRQ
	})
	t.Run("completions of a closed SRQ are dropped", func(t *testing.T) {
		a, b, domain := s.domains(t, nil)
		send := func(id uint64) {
			a.post(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num()})
			a.sent(id, verbs.WCSuccess)
		}
		_, err := domain.CreateSRQ(b.pd, b.recv, verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}) // which stays
		require.NoError(t, err)
		b.receive(receives(1, 3)...)
		send(1)
		// A QP whose send queue is full takes completions out of its CQ to see what is
		// done, those of the SRQ too.
		busy := *b
		busy.send, busy.srq = b.recv, nil
		busy.qp = busy.newQP()
		busy.toInit()
		full := busy.qp
		require.NoError(t, full.Modify(verbs.QPAttr{State: verbs.QPStateErr}, verbs.QPAttrState))
		flushed := 0
		for err == nil {
			var n int
			n, err = full.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
			flushed += n
			require.Less(t, flushed, 1000)
		}
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		send(2) // stays in the queue
		require.NoError(t, b.srq.Close())
		b.srq, err = domain.CreateSRQ(b.pd, b.recv, verbs.SRQAttr{MaxWR: 32, MaxSGE: 2})
		require.NoError(t, err)
		for _, wc := range b.poll(b.recv, flushed) {
			require.Equal(t, full.Num(), wc.QPN)
		}
		b.silent(b.recv)
		b.receive(verbs.RecvWR{ID: 4})
		send(3)
		b.received(4, verbs.WCSuccess)
	})
	t.Run("many messages go round small queues", func(t *testing.T) {
		a, b, _ := s.domains(t, nil)
		const n = 500
		b.receive(receives(0, 16)...)
		posted, sent, got := 0, 0, 0
		var wcs [16]verbs.WC
		for deadline := time.Now().Add(patience); got < n || sent < n; {
			require.True(t, time.Now().Before(deadline), "%d posted, %d sent, %d received", posted, sent, got)
			for posted < n && posted-sent < 32 {
				a.post(verbs.SendWR{ID: uint64(posted), Opcode: verbs.OpSendWithImm, Imm: uint32(posted), Flags: verbs.SendSignaled, RemoteSRQ: b.srq.Num()})
				posted++
			}
			k, err := a.send.Poll(wcs[:])
			require.NoError(t, err)
			sent += k
			k, err = b.recv.Poll(wcs[:])
			require.NoError(t, err)
			for i, wc := range wcs[:k] {
				require.Equal(t, verbs.WCSuccess, wc.Status)
				require.EqualValues(t, got+i, wc.Imm)
			}
			b.receive(receives(0, k)...)
			got += k
		}
	})
	t.Run("who opens the file of a domain shares its QPs and SRQs", func(t *testing.T) {
		file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
		require.NoError(t, err)
		a, b, domain := s.domains(t, file)
		if a.ctx.Name() != b.ctx.Name() {
			t.Skip("they are of two devices")
		}
		// Here a is another process of the same host, as far as b's device knows.
		same, err := a.ctx.OpenXRCDomain(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		target, err := same.OpenQP(b.qp.Num())
		require.NoError(t, err)
		require.Equal(t, b.qp.Num(), target.Num())
		attr, err := target.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateRTS, attr.State)
		require.Equal(t, a.qp.Num(), attr.DestQPN)
		_, err = same.OpenQP(a.qp.Num())
		require.ErrorIs(t, err, verbs.ErrInvalid, "that is no target")
		alone, err := a.ctx.OpenXRCDomain(nil)
		require.NoError(t, err)
		_, err = alone.OpenQP(b.qp.Num())
		require.ErrorIs(t, err, verbs.ErrInvalid, "that is of another domain")

		srq, err := same.CreateSRQ(a.pd, a.recv, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
		require.NoError(t, err)
		_, err = srq.PostRecv([]verbs.RecvWR{{ID: 7, SGL: []verbs.SGE{a.mr.SGE(4096, 8)}}, {ID: 8}})
		require.NoError(t, err)
		want := pattern(a.mr.Bytes()[:8], 9)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: srq.Num(), SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		wc := a.poll(a.recv, 1)[0]
		require.Equal(t, verbs.WC{ID: 7, QPN: b.qp.Num(), Opcode: verbs.WCRecv, ByteLen: 8}, plainWC(wc))
		require.Equal(t, want, a.mr.Bytes()[4096:][:8])
		a.sent(1, verbs.WCSuccess)
		require.ErrorIs(t, domain.Close(), verbs.ErrBusy)
		require.NoError(t, b.qp.Close())
		require.NoError(t, b.srq.Close())
		require.NoError(t, domain.Close())
		a.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: srq.Num()})
		a.sent(2, verbs.WCSuccess)
		require.EqualValues(t, 8, a.poll(a.recv, 1)[0].ID, "the target stays as long as one has it open")
		if err := target.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState); err != nil {
			require.ErrorIs(t, err, verbs.ErrUnsupported) // over libmlx5, see package ibverbs
		}
		require.NoError(t, target.Close())
		require.NoError(t, srq.Close())
		require.NoError(t, same.Close())
	})
	t.Run("completions of an SRQ that is gone are for nobody", func(t *testing.T) {
		a, b, domain := s.domains(t, nil)
		send := func(id uint64, srq *verbs.SRQ) {
			a.post(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQ: srq.Num()})
			a.sent(id, verbs.WCSuccess)
		}
		b.receive(receives(1, 8)...)
		later, err := domain.CreateSRQ(b.pd, b.recv, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
		require.NoError(t, err)
		_, err = later.PostRecv(receives(20, 8))
		require.NoError(t, err)
		send(1, b.srq)
		send(2, later)
		send(3, b.srq)
		send(4, b.srq)
		send(5, later)
		time.Sleep(time.Millisecond) // they are in the CQ
		require.NoError(t, b.srq.Close())
		for _, id := range []uint64{20, 21} {
			require.Equal(t, id, b.poll(b.recv, 1)[0].ID)
		}
		b.silent(b.recv)
		again, err := domain.CreateSRQ(b.pd, b.recv, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
		require.NoError(t, err)
		_, err = again.PostRecv(receives(40, 8))
		require.NoError(t, err)
		for id := range uint64(8) {
			send(id, again)
			require.Equal(t, 40+id, b.poll(b.recv, 1)[0].ID)
		}
		b.silent(b.recv)
	})
	t.Run("what is in use stays", func(t *testing.T) {
		_, b, domain := s.domains(t, nil)
		require.ErrorIs(t, domain.Close(), verbs.ErrBusy)
		require.NoError(t, b.qp.Close())
		require.ErrorIs(t, domain.Close(), verbs.ErrBusy)
		require.ErrorIs(t, b.recv.Close(), verbs.ErrBusy)
		require.NoError(t, b.mr.Close())
		require.ErrorIs(t, b.pd.Close(), verbs.ErrBusy)
		require.NoError(t, b.srq.Close())
		require.NoError(t, domain.Close())
		require.NoError(t, domain.Close(), "once more")
		require.NoError(t, b.recv.Close())
		require.NoError(t, b.pd.Close())
		_, err := domain.CreateQP()
		require.ErrorIs(t, err, verbs.ErrClosed)
	})
}

// plainWC is a completion without its time.
func plainWC(wc verbs.WC) verbs.WC {
	wc.Timestamp = 0
	return wc
}

// writeAndRead has the initiator a write to b's memory, twice, and read it.
func writeAndRead(t *testing.T, a, b *side) {
	key, addr, srq := b.mr.RKey(), b.mr.Addr(), b.srq.Num()
	want := pattern(a.mr.Bytes()[:5000], 6)
	b.receive(receives(1, 1)...)
	a.post(
		verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, RemoteSRQ: srq, RKey: key, RemoteAddr: addr, SGL: []verbs.SGE{a.mr.SGE(0, 5000)}},
		verbs.SendWR{ID: 2, Opcode: verbs.OpWriteWithImm, Imm: 9, Flags: verbs.SendSignaled, RemoteSRQ: srq, RKey: key, RemoteAddr: addr},
		verbs.SendWR{ID: 3, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, RemoteSRQ: srq, RKey: key, RemoteAddr: addr + 1,
			SGL: []verbs.SGE{a.mr.SGE(8192, 4999)}})
	require.EqualValues(t, 9, b.received(1, verbs.WCSuccess).Imm)
	a.sent(2, verbs.WCSuccess)
	a.sent(3, verbs.WCSuccess)
	require.Equal(t, want, b.mr.Bytes()[:5000])
	require.Equal(t, want[1:], a.mr.Bytes()[8192:][:4999])
}
