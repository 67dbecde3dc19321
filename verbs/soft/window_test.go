//go:build linux

package soft_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// post posts one signaled request and returns how it went.
func (e *end) post(t testing.TB, wr verbs.SendWR) verbs.WCStatus {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	return poll(t, e.send, 1)[0].Status
}

// bindWindow makes a window of type 2 over the first 64 bytes of a new region of e.
func (e *end) bindWindow(t testing.TB) (*verbs.MW, *verbs.MR, uint32) {
	t.Helper()
	mr, err := e.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind, verbs.MROptions{})
	require.NoError(t, err)
	mw, err := e.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	key := mw.RKey() + 1
	require.Equal(t, verbs.WCSuccess, e.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &verbs.Bind{
		MW: mw, RKey: key, MR: mr, Addr: mr.Addr(), Length: 64, Access: verbs.AccessRemoteWrite,
	}}))
	return mw, mr, key
}

func writeByte(addr uint64, key uint32) verbs.SendWR {
	return verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{{7}}, RemoteAddr: addr, RKey: key}
}

// A window of type 2 is that of the QP which has bound it.
func TestAWindowIsForThePeerOfItsQPAlone(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		owner, friend, other := newEnd(t, usual), newEnd(t, usual), newEnd(t, usual)
		connect(t, owner, friend)
		connect(t, another(t, owner), other)
		_, mr, key := owner.bindWindow(t)
		require.Equal(t, verbs.WCSuccess, friend.post(t, writeByte(mr.Addr(), key)))
		require.Equal(t, byte(7), mr.Bytes()[0])
		require.Equal(t, verbs.WCRemAccessErr, other.post(t, writeByte(mr.Addr(), key)))
	})
}

// A peer that has keys to read with gets nothing that it could write to, though other
// keys of the same memory let others write.
func TestAPeerThatMayReadCannotMapToWrite(t *testing.T) {
	soft.CheckLeaks(t)
	soft.PairAsStrangers(t)
	read := func(t *testing.T, e *end, addr uint64, key uint32) {
		require.Equal(t, verbs.WCSuccess, e.post(t, verbs.SendWR{
			Opcode: verbs.OpRead, SGL: []verbs.SGE{e.mr.SGE(0, 8)}, RemoteAddr: addr, RKey: key,
		}))
		require.ErrorIs(t, soft.MakeWritable(e.qp), unix.EACCES)
	}
	for name, access := range map[string]verbs.Access{
		"never written to by peers": verbs.AccessRemoteRead,
		"with windows to read":      verbs.AccessRemoteRead | verbs.AccessMWBind,
		"with windows":              verbs.AccessRemoteRead | verbs.AccessMWBind | verbs.AccessLocalWrite,
	} {
		t.Run(name, func(t *testing.T) {
			owner, peer := newPair(t, usual)
			mr, err := owner.pd.AllocMR(8192, access, verbs.MROptions{})
			require.NoError(t, err)
			read(t, peer, mr.Addr(), mr.RKey())
		})
	}
	t.Run("a window", func(t *testing.T) {
		owner, peer := newPair(t, usual)
		mr, err := owner.pd.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessMWBind, verbs.MROptions{})
		require.NoError(t, err)
		require.Zero(t, soft.ModeOfRegion(t, owner.qp, mr)&0o77, "other users may not open it again")
		bind := func(access verbs.Access) uint32 {
			mw, err := owner.pd.AllocMW(verbs.MWType2)
			require.NoError(t, err)
			key := mw.RKey() + 1
			require.Equal(t, verbs.WCSuccess, owner.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &verbs.Bind{
				MW: mw, RKey: key, MR: mr, Addr: mr.Addr() + 4096, Length: 64, Access: access,
			}}))
			return key
		}
		read(t, peer, mr.Addr()+4096, bind(verbs.AccessRemoteRead))
		require.Equal(t, verbs.WCSuccess, peer.post(t, writeByte(mr.Addr()+4096, bind(verbs.AccessRemoteWrite))))
		require.Equal(t, byte(7), mr.Bytes()[4096])
	})
}

// What a QP of another PD may not bind it may not unbind either.
func TestAWindowIsUnboundWithinItsPDOnly(t *testing.T) {
	a, _ := newPair(t, usual)
	mr, err := a.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind, verbs.MROptions{})
	require.NoError(t, err)
	mw, err := a.pd.AllocMW(verbs.MWType1)
	require.NoError(t, err)
	bind := verbs.Bind{MW: mw, MR: mr, Addr: mr.Addr(), Length: 64, Access: verbs.AccessRemoteWrite}
	require.Equal(t, verbs.WCSuccess, a.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &bind}))
	key := mw.RKey()

	elsewhere := *a
	elsewhere.pd, err = a.ctx.AllocPD()
	require.NoError(t, err)
	elsewhere.qp = another(t, &elsewhere).qp
	connect(t, &elsewhere, newEnd(t, usual))
	bind.Length = 0
	require.Equal(t, verbs.WCMWBindErr, elsewhere.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &bind}))
	require.Equal(t, key, mw.RKey())
	require.ErrorIs(t, mr.Close(), verbs.ErrBusy, "it is bound")
	require.Equal(t, verbs.WCSuccess, a.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &bind}))
	require.NoError(t, mr.Close())
}

func TestAWindowEndsWithItsQP(t *testing.T) {
	a, b := newPair(t, usual)
	mw, mr, _ := a.bindWindow(t)
	require.ErrorIs(t, mr.Close(), verbs.ErrBusy)
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	require.NoError(t, mr.Close(), "the window is bound to nothing")
	require.NoError(t, mw.Close())
	_ = b
}

func TestWindowsAreBoundAsTheSpecificationAllows(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b *verbs.Bind)
	}{
		{"a key of another window", func(b *verbs.Bind) { b.RKey += 1 << 8 }},
		{"the key that it has", func(b *verbs.Bind) { b.RKey = b.MW.RKey() }},
		{"more than the region", func(b *verbs.Bind) { b.Length = 4097 }},
		{"memory before the region", func(b *verbs.Bind) { b.Addr-- }},
		{"memory behind the region", func(b *verbs.Bind) { b.Addr += 4097; b.Length = 1 }},
		{"a length that wraps", func(b *verbs.Bind) { b.Addr += 8; b.Length = 1<<64 - 1 }},
		{"nothing", func(b *verbs.Bind) { b.Length = 0 }},
		{"rights that are local", func(b *verbs.Bind) { b.Access = verbs.AccessLocalWrite }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := newPair(t, usual)
			mr, err := a.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind, verbs.MROptions{})
			require.NoError(t, err)
			mw, err := a.pd.AllocMW(verbs.MWType2)
			require.NoError(t, err)
			b := &verbs.Bind{MW: mw, RKey: mw.RKey() + 1, MR: mr, Addr: mr.Addr(), Length: 8, Access: verbs.AccessRemoteRead}
			c.change(b)
			require.Equal(t, verbs.WCMWBindErr, a.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: b}))
			require.NoError(t, mr.Close(), "it is not bound")
		})
	}
	t.Run("remote writing where there is no local writing", func(t *testing.T) {
		a, _ := newPair(t, usual)
		mr, err := a.pd.AllocMR(4096, verbs.AccessMWBind, verbs.MROptions{})
		require.NoError(t, err)
		mw, err := a.pd.AllocMW(verbs.MWType2)
		require.NoError(t, err)
		require.Equal(t, verbs.WCMWBindErr, a.post(t, verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &verbs.Bind{
			MW: mw, RKey: mw.RKey() + 1, MR: mr, Addr: mr.Addr(), Length: 8, Access: verbs.AccessRemoteWrite,
		}}))
	})
}

// A peer keeps what it has mapped: Reregister gives the region other memory, with
// the same bytes at the same address.
func TestAReregisteredRegionIsNotSharedWithFormerPeers(t *testing.T) {
	soft.PairAsStrangers(t)
	a, b := newPair(t, usual)
	mr, err := b.pd.AllocMR(8192, everyRight, verbs.MROptions{})
	require.NoError(t, err)
	bytes, former := mr.Bytes(), mr.RKey()
	require.Equal(t, verbs.WCSuccess, a.post(t, writeByte(mr.Addr()+5, former)))
	require.NoError(t, mr.Reregister(verbs.MRUpdate{Access: verbs.AccessLocalWrite}, verbs.MRChangeAccess))
	require.Equal(t, &bytes[0], &mr.Bytes()[0])
	require.Equal(t, byte(7), bytes[5], "the bytes are there")
	soft.Scribble(a.qp)
	require.Equal(t, byte(7), bytes[5])
	require.NoError(t, mr.Reregister(verbs.MRUpdate{Access: everyRight}, verbs.MRChangeAccess))
	require.Equal(t, verbs.WCSuccess, a.post(t, writeByte(mr.Addr()+6, mr.RKey())))
	require.Equal(t, byte(7), bytes[6])
	require.NotEqual(t, former, mr.RKey())
	require.NoError(t, mr.Close())
}

func TestARegionWithAWindowIsNotReregistered(t *testing.T) {
	a, _ := newPair(t, usual)
	mw, mr, _ := a.bindWindow(t)
	require.ErrorIs(t, mr.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess), verbs.ErrBusy)
	require.NoError(t, mw.Close())
	require.NoError(t, mr.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess))
	require.NoError(t, mr.Close())
}

func TestPersistentMemoryIsRefused(t *testing.T) {
	e := newEnd(t, usual)
	_, err := e.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessFlushPersistent, verbs.MROptions{})
	require.ErrorIs(t, err, verbs.ErrUnsupported)
}

// There is nothing to take away the second time. It is not asked of all devices:
// rxe's kernel (6.12) dies of it.
func TestAKeyIsTakenAwayOnce(t *testing.T) {
	a, _ := newPair(t, usual)
	_, _, key := a.bindWindow(t)
	require.Equal(t, verbs.WCSuccess, a.post(t, verbs.SendWR{Opcode: verbs.OpLocalInv, InvalidateRKey: key}))
	require.Equal(t, verbs.WCLocQPOpErr, a.post(t, verbs.SendWR{Opcode: verbs.OpLocalInv, InvalidateRKey: key}))
	require.Equal(t, verbs.QPStateErr, state(t, a))
}
