package verbstest

import (
	"encoding/binary"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testBatch builds requests and posts them together.
func testBatch(t *testing.T, s *suite) {
	t.Run("a batch does what its requests say, in order", func(t *testing.T) {
		a, b := s.connected(t, usual)
		want := pattern(a.mr.Bytes()[:4096], 3)
		b.receive(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(8192, 100)}}, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{b.mr.SGE(8292, 100)}})
		batch := a.qp.NewSendBatch(1) // it grows
		batch.Start()
		batch.ID = 10
		batch.Write(b.mr.RKey(), b.mr.Addr())
		batch.SetSGE(a.mr.SGE(0, 1000))
		batch.ID = 11
		batch.Write(b.mr.RKey(), b.mr.Addr()+1000)
		batch.SetSGEs([]verbs.SGE{a.mr.SGE(1000, 1000), a.mr.SGE(2000, 2096)})
		batch.Send()
		batch.SetInlineList([][]byte{[]byte("te"), nil, []byte("xt")})
		batch.ID, batch.Flags = 12, verbs.SendSignaled
		batch.Send()
		batch.SetSGE(a.mr.SGE(0, 50))
		require.Equal(t, 4, batch.Len())
		n, err := batch.Complete()
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Zero(t, batch.Len())
		a.sent(12, verbs.WCSuccess)
		b.received(1, verbs.WCSuccess)
		b.received(2, verbs.WCSuccess)
		require.Equal(t, want, b.mr.Bytes()[:4096])
		require.Equal(t, "text", string(b.mr.Bytes()[8192:][:4]))
		require.Equal(t, want[:50], b.mr.Bytes()[8292:][:50])
	})
	t.Run("READ, immediates and atomics, where there are", func(t *testing.T) {
		a, b := s.connected(t, usual)
		caps := a.ctx.Attr().Caps
		if !caps.Has(verbs.CapRead | verbs.CapAtomics | verbs.CapWriteWithImm) {
			t.Skip("the device has not all of them")
		}
		want := pattern(b.mr.Bytes()[:100], 4)
		binary.NativeEndian.PutUint64(b.mr.Bytes()[104:], 40)
		b.receive(receives(1, 2)...)
		batch := a.qp.NewSendBatch(8)
		batch.Flags = verbs.SendSignaled
		batch.Read(b.mr.RKey(), b.mr.Addr())
		batch.SetSGE(a.mr.SGE(0, 100))
		batch.FetchAdd(b.mr.RKey(), b.mr.Addr()+104, 2)
		batch.SetSGE(a.mr.SGE(200, 8))
		batch.CompareSwap(b.mr.RKey(), b.mr.Addr()+104, 42, 43)
		batch.SetSGE(a.mr.SGE(208, 8))
		batch.WriteImm(b.mr.RKey(), b.mr.Addr(), 7)
		batch.SendImm(8)
		_, err := batch.Complete()
		require.NoError(t, err)
		for _, wc := range a.poll(a.send, 5) {
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
		require.Equal(t, want, a.mr.Bytes()[:100])
		require.EqualValues(t, 40, binary.NativeEndian.Uint64(a.mr.Bytes()[200:]))
		require.EqualValues(t, 42, binary.NativeEndian.Uint64(a.mr.Bytes()[208:]))
		require.EqualValues(t, 43, binary.NativeEndian.Uint64(b.mr.Bytes()[104:]))
		require.EqualValues(t, 7, b.received(1, verbs.WCSuccess).Imm)
		require.EqualValues(t, 8, b.received(2, verbs.WCSuccess).Imm)
	})
	t.Run("ATOMIC_WRITE and FLUSH, where there are", func(t *testing.T) {
		conf := usual
		if !s.open(t).A.Attr().Caps.Has(verbs.CapAtomicWrite | verbs.CapFlush) {
			t.Skip("the device has not both of them")
		}
		conf.memAccess = everyRight | verbs.AccessFlushGlobal
		conf.qpAccess = everyRight | verbs.AccessFlushGlobal
		a, b := s.connected(t, conf)
		batch := a.qp.NewSendBatch(1)
		batch.Flags = verbs.SendSignaled
		batch.AtomicWrite(b.mr.RKey(), b.mr.Addr(), [8]byte{1, 2, 3, 4, 5, 6, 7, 8})
		batch.Flush(b.mr.RKey(), b.mr.Addr(), verbs.Flush{Type: verbs.FlushGlobal, Length: 8})
		_, err := batch.Complete()
		require.NoError(t, err)
		for _, wc := range a.poll(a.send, 2) {
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
		require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, b.mr.Bytes()[:8])
	})
	t.Run("windows and keys, where there are", func(t *testing.T) {
		conf := usual
		if !s.open(t).A.Attr().Caps.Has(verbs.CapMemWindow | verbs.CapSendWithInv) {
			t.Skip("the device has not both of them")
		}
		conf.memAccess = everyRight | verbs.AccessMWBind
		a, b := s.connected(t, conf)
		mw, err := b.pd.AllocMW(verbs.MWType2)
		require.NoError(t, err)
		key := nextKey(mw.RKey())
		batch := b.qp.NewSendBatch(1)
		batch.Flags = verbs.SendSignaled
		batch.BindMW(verbs.Bind{MW: mw, RKey: key, MR: b.mr, Addr: b.mr.Addr(), Length: 64, Access: verbs.AccessRemoteWrite})
		_, err = batch.Complete()
		require.NoError(t, err)
		b.sent(0, verbs.WCSuccess)
		b.receive(receives(5, 1)...)
		batch = a.qp.NewSendBatch(1)
		batch.Flags = verbs.SendSignaled
		batch.Write(key, b.mr.Addr())
		batch.SetSGE(a.mr.SGE(0, 8))
		batch.SendInv(key)
		want := pattern(a.mr.Bytes()[:8], 4)
		_, err = batch.Complete()
		require.NoError(t, err)
		for _, wc := range a.poll(a.send, 2) {
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
		require.Equal(t, want, b.mr.Bytes()[:8])
		require.Equal(t, key, b.received(5, verbs.WCSuccess).Imm)
		batch = b.qp.NewSendBatch(2)
		batch.Flags = verbs.SendSignaled
		batch.BindMW(verbs.Bind{MW: mw, RKey: nextKey(key), MR: b.mr, Addr: b.mr.Addr(), Length: 64, Access: verbs.AccessRemoteWrite})
		batch.LocalInv(nextKey(key))
		_, err = batch.Complete()
		require.NoError(t, err)
		require.Equal(t, verbs.WCBindMW, b.sent(0, verbs.WCSuccess).Opcode)
		require.Equal(t, verbs.WCLocalInv, b.sent(0, verbs.WCSuccess).Opcode)
	})
	t.Run("a datagram goes where SetAddress says", func(t *testing.T) {
		a, b := s.datagrams(t)
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		b.receive(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{b.mr.SGE(0, 100)}})
		batch := a.qp.NewSendBatch(1)
		batch.Flags = verbs.SendSignaled
		batch.SendImm(6)
		batch.SetAddress(ah, b.qp.Num(), datagramQKey)
		batch.SetInline([]byte("datagram"))
		_, err = batch.Complete()
		require.NoError(t, err)
		a.sent(0, verbs.WCSuccess)
		require.EqualValues(t, 6, b.received(3, verbs.WCSuccess).Imm)
		require.Equal(t, "datagram", string(b.mr.Bytes()[grhSize:][:8]))
	})
	t.Run("a mistake posts nothing", func(t *testing.T) {
		a, _ := s.connected(t, usual)
		batch := a.qp.NewSendBatch(1)
		batch.SetInline(nil)
		batch.Send()
		n, err := batch.Complete()
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, "SetInline")
		require.Zero(t, n)
		batch.Send()
		batch.Start()
		n, err = batch.Complete()
		require.NoError(t, err, "the mistake is forgotten")
		require.Zero(t, n)
		a.silent(a.send)
	})
	t.Run("a batch that was used allocates nothing", func(t *testing.T) {
		a, b := s.connected(t, usual)
		batch := a.qp.NewSendBatch(4)
		wcs := make([]verbs.WC, 1)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			batch.Start()
			batch.Flags = 0
			for range 3 {
				batch.Write(b.mr.RKey(), b.mr.Addr())
				batch.SetSGE(a.mr.SGE(0, 64))
			}
			batch.Flags = verbs.SendSignaled
			batch.Write(b.mr.RKey(), b.mr.Addr())
			batch.SetSGE(a.mr.SGE(0, 64))
			if n, err := batch.Complete(); n != 4 || err != nil {
				t.Fatal(n, err)
			}
			for n := 0; n == 0; n, _ = a.send.Poll(wcs) {
			}
		}))
	})
}
