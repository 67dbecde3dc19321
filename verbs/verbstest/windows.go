package verbstest

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// windowed is a memory window of side b over the second KiB of four.
type windowed struct {
	a, b *side
	mw   *verbs.MW
	mr   *verbs.MR
	key  uint32 // that of the last bind
}

const (
	windowOffset = 1024
	windowLength = 1024
)

func (s *suite) windowed(t *testing.T) *windowed {
	t.Helper()
	a, b := s.connected(t, usual)
	if !b.ctx.Attr().Caps.Has(verbs.CapMemWindow) {
		t.Skip("the device has no memory windows")
	}
	w := &windowed{a: a, b: b}
	var err error
	w.mr, err = b.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind, verbs.MROptions{})
	require.NoError(t, err)
	w.mw, err = b.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	w.key = w.mw.RKey()
	return w
}

// nextKey returns the key of a window of type 2 that follows key.
func nextKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// bind is a bind with the next key.
func (w *windowed) bind(access verbs.Access) verbs.SendWR {
	w.key = nextKey(w.key)
	return verbs.SendWR{ID: 70, Opcode: verbs.OpBindMW, Flags: verbs.SendSignaled, Bind: &verbs.Bind{
		MW: w.mw, RKey: w.key, MR: w.mr, Addr: w.mr.Addr() + windowOffset, Length: windowLength, Access: access,
	}}
}

func (w *windowed) bound(access verbs.Access) {
	w.b.t.Helper()
	w.b.post(w.bind(access))
	require.Equal(w.b.t, verbs.WCBindMW, w.b.sent(70, verbs.WCSuccess).Opcode)
}

// at is an address in the region, from the beginning of the window on.
func (w *windowed) at(off int) uint64 { return w.mr.Addr() + uint64(windowOffset+off) }

// testWindows binds memory windows of type 2, uses them and takes them away.
func testWindows(t *testing.T, s *suite) {
	const rights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	t.Run("a bound window lets the peer in where it is", func(t *testing.T) {
		w := s.windowed(t)
		w.bound(rights)
		want := pattern(w.a.mr.Bytes()[:windowLength], 6)
		w.a.post(w.a.write(w.at(0), w.key, windowLength))
		w.a.sent(50, verbs.WCSuccess)
		require.Equal(t, want, w.mr.Bytes()[windowOffset:][:windowLength])
		require.Equal(t, make([]byte, windowOffset), w.mr.Bytes()[:windowOffset], "bytes before")
		clear(w.a.mr.Bytes()[:windowLength])
		w.a.post(w.a.read(w.at(0), w.key, windowLength))
		w.a.sent(50, verbs.WCSuccess)
		require.Equal(t, pattern(make([]byte, windowLength), 6), w.a.mr.Bytes()[:windowLength])
	})
	for _, c := range []struct {
		name   string
		access verbs.Access
		lack   Lack
		wr     func(w *windowed) verbs.SendWR
	}{
		{"behind its end", rights, LackWindowBounds, func(w *windowed) verbs.SendWR { return w.a.write(w.at(windowLength-7), w.key, 8) }},
		{"before its beginning", rights, LackWindowBounds, func(w *windowed) verbs.SendWR { return w.a.write(w.at(-1), w.key, 8) }},
		{"without the right to write", verbs.AccessRemoteRead, 0, func(w *windowed) verbs.SendWR { return w.a.write(w.at(0), w.key, 8) }},
		{"without the right to read", verbs.AccessRemoteWrite, 0, func(w *windowed) verbs.SendWR { return w.a.read(w.at(0), w.key, 8) }},
		{"by the key from before the bind", rights, 0, func(w *windowed) verbs.SendWR { return w.a.write(w.at(0), w.mw.RKey(), 8) }},
	} {
		t.Run("a window does not let the peer in "+c.name, func(t *testing.T) {
			w := s.windowed(t)
			if w.a.pair.Lacks&c.lack != 0 {
				t.Skip("this device does not look at the bounds of windows")
			}
			w.bound(c.access)
			pattern(w.a.mr.Bytes()[:8], 1)
			w.a.post(c.wr(w))
			w.a.sent(50, verbs.WCRemAccessErr)
			require.Equal(t, make([]byte, 4096), w.mr.Bytes())
		})
	}
	t.Run("SEND_WITH_INV takes a window away", func(t *testing.T) {
		w := s.windowed(t)
		w.a.requireCap(verbs.OpSendWithInv)
		w.bound(rights)
		w.b.receive(verbs.RecvWR{ID: 1})
		w.a.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSendWithInv, Flags: verbs.SendSignaled, InvalidateRKey: w.key})
		wc := w.b.received(1, verbs.WCSuccess)
		require.NotZero(t, wc.Flags&verbs.WCWithInv)
		require.Equal(t, w.key, wc.Imm)
		w.a.sent(2, verbs.WCSuccess)
		w.a.post(w.a.write(w.at(0), w.key, 8))
		w.a.sent(50, verbs.WCRemAccessErr)
	})
	t.Run("LOCAL_INV takes a window away, and it can be bound again", func(t *testing.T) {
		w := s.windowed(t)
		for range 260 { // more than there are keys
			w.bound(rights)
			w.a.post(w.a.write(w.at(0), w.key, 8))
			w.a.sent(50, verbs.WCSuccess)
			w.b.post(verbs.SendWR{ID: 71, Opcode: verbs.OpLocalInv, Flags: verbs.SendSignaled, InvalidateRKey: w.key})
			require.Equal(t, verbs.WCLocalInv, w.b.sent(71, verbs.WCSuccess).Opcode)
		}
		w.a.post(w.a.write(w.at(0), w.key, 8))
		w.a.sent(50, verbs.WCRemAccessErr)
	})
	t.Run("a window of type 1 moves with each bind, and is taken away by an empty one", func(t *testing.T) {
		w := s.windowed(t)
		require.NoError(t, w.mw.Close())
		var err error
		w.mw, err = w.b.pd.AllocMW(verbs.MWType1)
		require.NoError(t, err)
		require.Equal(t, verbs.MWType1, w.mw.Type())
		bind := func(offset, length int) uint32 {
			w.b.post(verbs.SendWR{ID: 70, Opcode: verbs.OpBindMW, Flags: verbs.SendSignaled, Bind: &verbs.Bind{
				MW: w.mw, MR: w.mr, Addr: w.mr.Addr() + uint64(offset), Length: uint64(length), Access: rights,
			}})
			w.b.sent(70, verbs.WCSuccess)
			return w.mw.RKey()
		}
		first := bind(0, 512)
		w.a.post(w.a.write(w.mr.Addr(), first, 512))
		w.a.sent(50, verbs.WCSuccess)
		second := bind(1024, 512)
		require.NotEqual(t, first, second)
		w.a.post(w.a.write(w.mr.Addr()+1024, second, 512))
		w.a.sent(50, verbs.WCSuccess)
		bind(0, 0)
		w.a.post(w.a.write(w.mr.Addr()+1024, second, 512))
		w.a.sent(50, verbs.WCRemAccessErr)
	})
	t.Run("one QP at a time binds a window", func(t *testing.T) {
		for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
			w := s.windowed(t)
			c := w.b.again()
			far := *w.a
			far.qp = w.a.newQP()
			join(&far, c)
			require.NoError(t, w.mw.Close())
			var err error
			w.mw, err = w.b.pd.AllocMW(typ)
			require.NoError(t, err)
			w.key = w.mw.RKey()
			wr := w.bind(rights)
			w.b.post(wr) // its completion is not polled
			first := w.mw.RKey()
			other := w.bind(rights)
			other.ID, other.Bind.Addr, other.Bind.Length = 80, w.mr.Addr(), 512
			if n, err := c.qp.PostSend([]verbs.SendWR{other}); n == 0 {
				require.ErrorIs(t, err, verbs.ErrBusy)
				require.Equal(t, first, w.mw.RKey(), "the key of the bind that is under way")
				w.b.sent(70, verbs.WCSuccess)
				if typ == verbs.MWType2 { // it is bound to the first QP
					w.b.post(verbs.SendWR{ID: 71, Opcode: verbs.OpLocalInv, Flags: verbs.SendSignaled, InvalidateRKey: wr.Bind.RKey})
					w.b.sent(71, verbs.WCSuccess)
				}
				c.post(other)
				c.sent(80, verbs.WCSuccess)
			} else {
				require.NoError(t, err)
				require.Equal(t, verbs.TransportSoft, w.b.ctx.Attr().Transport, "QPs of a device execute in no order")
				if typ == verbs.MWType2 {
					continue
				}
				for _, wc := range w.b.poll(w.b.send, 2) {
					require.Equal(t, verbs.WCSuccess, wc.Status)
				}
			}
			key := other.Bind.RKey
			if typ == verbs.MWType1 {
				key = w.mw.RKey()
			}
			far.post(far.write(w.mr.Addr(), key, 512))
			far.sent(50, verbs.WCSuccess)
		}
	})
	t.Run("a key that has come round names what it was bound to last", func(t *testing.T) {
		w := s.windowed(t)
		if w.a.pair.Lacks&LackWindowBounds != 0 {
			t.Skip("this device does not look at the bounds of windows")
		}
		w.bound(rights)
		key := w.key
		w.a.post(w.a.write(w.at(0), key, 8))
		w.a.sent(50, verbs.WCSuccess)
		for _, k := range []uint32{key + 1, key} {
			w.b.post(verbs.SendWR{ID: 71, Opcode: verbs.OpLocalInv, Flags: verbs.SendSignaled, InvalidateRKey: w.key})
			w.b.sent(71, verbs.WCSuccess)
			w.key = k
			w.b.post(verbs.SendWR{ID: 70, Opcode: verbs.OpBindMW, Flags: verbs.SendSignaled, Bind: &verbs.Bind{
				MW: w.mw, RKey: k, MR: w.mr, Addr: w.mr.Addr() + 3072, Length: 8, Access: rights,
			}})
			w.b.sent(70, verbs.WCSuccess)
		}
		want := pattern(w.a.mr.Bytes()[:8], 9)
		w.a.post(w.a.write(w.mr.Addr()+3072, key, 8))
		w.a.sent(50, verbs.WCSuccess)
		require.Equal(t, want, w.mr.Bytes()[3072:][:8])
		w.a.post(w.a.write(w.at(0), key, 8))
		w.a.sent(50, verbs.WCRemAccessErr)
	})
	t.Run("memory without the right to bind cannot be bound", func(t *testing.T) {
		w := s.windowed(t)
		w.mr = w.b.mr
		if n, err := w.b.qp.PostSend([]verbs.SendWR{w.bind(rights)}); n == 0 {
			require.ErrorIs(t, err, verbs.ErrInvalid, "the driver sees it before the device does")
			return
		}
		w.b.sent(70, verbs.WCMWBindErr)
		w.b.awaitState(verbs.QPStateErr)
	})
	t.Run("memory with a window cannot be closed before it", func(t *testing.T) {
		w := s.windowed(t)
		w.bound(rights)
		if w.b.pair.Lacks&LackBoundRegion != 0 {
			require.NoError(t, w.mr.Close())
			w.a.post(w.a.write(w.at(0), w.key, 8))
			w.a.sent(50, verbs.WCRemAccessErr)
			return
		}
		require.ErrorIs(t, w.mr.Close(), verbs.ErrBusy)
		require.NoError(t, w.mw.Close())
		require.NoError(t, w.mr.Close())
	})
}

// testReregister changes regions in place.
func testReregister(t *testing.T, s *suite) {
	local := func(t *testing.T) (a, b *side, mr *verbs.MR) {
		a, b = s.connected(t, usual)
		var err error
		if b.ctx.Attr().Caps.Has(verbs.CapRegisterSlice) {
			mr, err = b.pd.RegisterMR(make([]byte, 4096), verbs.AccessLocalWrite)
		} else {
			mr, err = b.pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
		}
		require.NoError(t, err)
		if !b.ctx.Attr().Caps.Has(verbs.CapReregister) {
			require.ErrorIs(t, mr.Reregister(verbs.MRUpdate{Access: everyRight}, verbs.MRChangeAccess), verbs.ErrUnsupported)
			t.Skip("the device cannot change regions")
		}
		return a, b, mr
	}
	t.Run("rights are given and taken", func(t *testing.T) {
		a, _, mr := local(t)
		require.NoError(t, mr.Reregister(verbs.MRUpdate{Access: everyRight}, verbs.MRChangeAccess))
		require.Equal(t, everyRight, mr.Access())
		want := pattern(a.mr.Bytes()[:64], 5)
		a.post(a.write(mr.Addr(), mr.RKey(), 64))
		a.sent(50, verbs.WCSuccess)
		require.Equal(t, want, mr.Bytes()[:64])
		require.NoError(t, mr.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess))
		a.post(a.write(mr.Addr(), mr.RKey(), 64))
		a.refused(50, verbs.WCRemAccessErr)
		require.NoError(t, mr.Close())
	})
	t.Run("a region moves to another PD", func(t *testing.T) {
		a, b, mr := local(t)
		pd, err := b.ctx.AllocPD()
		require.NoError(t, err)
		require.NoError(t, mr.Reregister(verbs.MRUpdate{PD: pd, Access: everyRight}, verbs.MRChangePD|verbs.MRChangeAccess))
		require.Same(t, pd, mr.PD())
		require.ErrorIs(t, pd.Close(), verbs.ErrBusy)
		a.post(a.write(mr.Addr(), mr.RKey(), 64))
		a.refused(50, verbs.WCRemAccessErr)
		require.NoError(t, mr.Close())
		require.NoError(t, pd.Close())
	})
	t.Run("a region gets other memory, if the device can", func(t *testing.T) {
		a, b, mr := local(t)
		before := verbs.PinnedBytes()
		other := pattern(make([]byte, 8192), 3)
		if err := mr.Reregister(verbs.MRUpdate{Memory: other}, verbs.MRChangeMemory); err != nil {
			require.ErrorIs(t, err, verbs.ErrUnsupported)
			require.Equal(t, before, verbs.PinnedBytes())
			require.Len(t, mr.Bytes(), 4096, "nothing has changed")
			t.Skip("the device changes no memory")
		}
		require.Equal(t, before+4096, verbs.PinnedBytes())
		require.Equal(t, &other[0], &mr.Bytes()[0])
		a.receive(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{a.mr.SGE(0, 8192)}})
		b.post(verbs.SendWR{ID: 4, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, 8192)}})
		a.received(3, verbs.WCSuccess)
		b.sent(4, verbs.WCSuccess)
		require.Equal(t, other, a.mr.Bytes()[:8192])
	})
}
