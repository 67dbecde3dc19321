package verbstest

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testDeviceMemory uses memory of the device, which wants words of four bytes on some.
func testDeviceMemory(t *testing.T, s *suite) {
	if p := s.open(t); !p.A.Attr().Caps.Has(verbs.CapDeviceMemory) {
		_, err := p.A.AllocDM(64)
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		require.Zero(t, p.A.Attr().MaxDMSize)
		t.Skip("the device has no memory of its own")
	}
	t.Run("requests reach it, and so does the process", func(t *testing.T) { testDeviceMemoryIsReached(t, s) })
	t.Run("every operation works on it", func(t *testing.T) { testDeviceMemoryOperations(t, s) })
	t.Run("what is not in it is refused", func(t *testing.T) { testDeviceMemoryBounds(t, s) })
	t.Run("there is so much of it, and no more", func(t *testing.T) {
		ctx := s.open(t).A
		most := int(ctx.Attr().MaxDMSize)
		_, err := ctx.AllocDM(most + 1)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		all, err := ctx.AllocDM(most)
		require.NoError(t, err)
		_, err = ctx.AllocDM(64)
		require.Error(t, err)
		require.NotErrorIs(t, err, verbs.ErrInvalid)
		want := pattern(make([]byte, most), 3)
		_, err = all.WriteAt(want, 0)
		require.NoError(t, err)
		got := make([]byte, most)
		_, err = all.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, all.Close())
		again, err := ctx.AllocDM(64)
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
	t.Run("it may be closed at any moment", func(t *testing.T) { testDeviceMemoryEnds(t, s) })
}

// ofDevice are n bytes at offset of an MR of device memory, whose addresses begin with 0.
func ofDevice(mr *verbs.MR, offset, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: uint64(offset), Length: uint32(n), LKey: mr.LKey()}}
}

func testDeviceMemoryIsReached(t *testing.T, s *suite) {
	a, b := s.connected(t, usual)
	pinned := verbs.PinnedBytes()
	dm, err := b.ctx.AllocDM(128)
	require.NoError(t, err)
	require.Equal(t, 128, dm.Len())
	require.Equal(t, b.ctx, dm.Context())
	mr, err := b.pd.RegisterDM(dm, 64, 64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	require.Equal(t, pinned, verbs.PinnedBytes())
	require.Nil(t, mr.Bytes())
	require.Zero(t, mr.Addr())

	// To it, at byte 64+8, and from there to the other side.
	want := pattern(a.mr.Bytes()[:16], 5)
	a.post(a.write(8, mr.RKey(), len(want)))
	a.sent(50, verbs.WCSuccess)
	a.placed(b)
	got := make([]byte, len(want))
	n, err := dm.ReadAt(got, 64+8)
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	require.Equal(t, want, got)
	back := func() []byte {
		t.Helper()
		b.post(verbs.SendWR{
			ID: 50, Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: ofDevice(mr, 8, len(want)), RemoteAddr: a.mr.Addr() + 100, RKey: a.mr.RKey(),
		})
		b.sent(50, verbs.WCSuccess)
		b.placed(a)
		return a.mr.Bytes()[100:][:len(want)]
	}
	require.Equal(t, want, back())

	// What the process writes the device has when WriteAt returns. Its slice may lie anywhere.
	word := make([]byte, 5)[1:]
	pattern(word, 99)
	n, err = dm.WriteAt(word, 64+8)
	require.NoError(t, err)
	require.Equal(t, len(word), n)
	require.Equal(t, append(word, want[len(word):]...), back())

	require.ErrorIs(t, mr.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess), verbs.ErrUnsupported)
	require.ErrorIs(t, dm.Close(), verbs.ErrBusy)
	require.NoError(t, mr.Close())
	require.NoError(t, dm.Close())
	_, err = dm.ReadAt(got, 0)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.NoError(t, dm.Close(), "once more")
}

func testDeviceMemoryOperations(t *testing.T, s *suite) {
	a, b := s.connected(t, usual)
	memory := make([]*verbs.DM, 2)
	for i, end := range []*side{a, b} {
		var err error
		memory[i], err = end.ctx.AllocDM(64)
		require.NoError(t, err)
		_, err = memory[i].WriteAt(binary.NativeEndian.AppendUint64(nil, 40), 16)
		require.NoError(t, err)
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if a.ctx.Attr().Caps.Has(verbs.CapAtomics) {
		access |= verbs.AccessRemoteAtomic
	}
	mr, err := b.pd.RegisterDM(memory[1], 0, 64, access)
	require.NoError(t, err)
	words := func(dm *verbs.DM) (list [3]uint64) {
		t.Helper()
		got := make([]byte, 24)
		_, err := dm.ReadAt(got, 16)
		require.NoError(t, err)
		for i := range list {
			list[i] = binary.NativeEndian.Uint64(got[8*i:])
		}
		return list
	}
	fetched := func(i int) uint64 { return binary.NativeEndian.Uint64(a.mr.Bytes()[8*i:]) }
	if access&verbs.AccessRemoteAtomic != 0 {
		a.post(
			verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: 2, SGL: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: 16, RKey: mr.RKey()},
			verbs.SendWR{
				ID: 1, Opcode: verbs.OpCompareSwap, CompareAdd: 42, Swap: 43, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(8, 8)}, RemoteAddr: 16, RKey: mr.RKey(),
			},
		)
		a.sent(1, verbs.WCSuccess)
		require.EqualValues(t, 40, fetched(0))
		require.EqualValues(t, 42, fetched(1))
	} else {
		_, err := memory[1].WriteAt(binary.NativeEndian.AppendUint64(nil, 43), 16)
		require.NoError(t, err)
	}
	read := verbs.SendWR{ID: 2, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(16, 8)}, RemoteAddr: 16, RKey: mr.RKey()}
	a.post(read)
	a.sent(2, verbs.WCSuccess)
	require.EqualValues(t, 43, fetched(2))
	b.receive(verbs.RecvWR{ID: 3}, verbs.RecvWR{ID: 4, SGL: ofDevice(mr, 32, 8)})
	a.post(
		verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: 1, SGL: []verbs.SGE{a.mr.SGE(16, 8)}, RemoteAddr: 24, RKey: mr.RKey()},
		verbs.SendWR{ID: 5, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(16, 8)}},
	)
	a.sent(5, verbs.WCSuccess)
	b.received(3, verbs.WCSuccess)
	b.received(4, verbs.WCSuccess)
	require.Equal(t, [3]uint64{43, 43, 43}, words(memory[1]))
	require.EqualValues(t, 40, words(memory[0])[0], "that of the other context is its own")
	last := []byte("last")
	_, err = memory[1].WriteAt(last, 60)
	require.NoError(t, err)
	a.post(a.write(60, mr.RKey(), 8))
	a.refused(50, verbs.WCRemAccessErr) // the MR ends at 64
	got := make([]byte, len(last))
	_, err = memory[1].ReadAt(got, 60)
	require.NoError(t, err)
	require.Equal(t, last, got)
	require.EqualValues(t, 40, words(memory[0])[0])
}

func testDeviceMemoryBounds(t *testing.T, s *suite) {
	p := s.open(t)
	pd, err := p.A.AllocPD()
	require.NoError(t, err)
	for _, length := range []int{-1, 0} {
		_, err := p.A.AllocDM(length)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	dm, err := p.A.AllocDM(128)
	require.NoError(t, err)
	type place struct{ offset, length int }
	for _, of := range []place{{-4, 8}, {124, 8}, {132, 0}, {0, 132}} {
		_, err = dm.ReadAt(make([]byte, of.length), int64(of.offset))
		require.ErrorIs(t, err, verbs.ErrInvalid, of)
		_, err = dm.WriteAt(make([]byte, of.length), int64(of.offset))
		require.ErrorIs(t, err, verbs.ErrInvalid, of)
	}
	for _, of := range []place{{2, 4}, {4, 2}} { // the device takes them or not
		if _, err = dm.ReadAt(make([]byte, of.length), int64(of.offset)); err != nil {
			require.ErrorIs(t, err, verbs.ErrInvalid, of)
		}
		if _, err = dm.WriteAt(make([]byte, of.length), int64(of.offset)); err != nil {
			require.ErrorIs(t, err, verbs.ErrInvalid, of)
		}
	}
	n, err := dm.ReadAt(nil, 128)
	require.NoError(t, err)
	require.Zero(t, n)
	for _, of := range []place{{-4, 8}, {124, 8}, {0, 0}, {0, -4}, {0, 132}} {
		_, err = pd.RegisterDM(dm, of.offset, of.length, verbs.AccessLocalWrite)
		require.ErrorIs(t, err, verbs.ErrInvalid, of)
	}
	_, err = pd.RegisterDM(nil, 0, 64, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = pd.RegisterDM(dm, 0, 64, verbs.AccessOnDemand)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = pd.RegisterDM(dm, 0, 64, verbs.AccessRemoteWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid, "peers may write it and its owner may not")
	foreign, err := p.B.AllocPD()
	require.NoError(t, err)
	_, err = foreign.RegisterDM(dm, 0, 64, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	mr, err := pd.RegisterDM(dm, 0, 128, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.ErrorIs(t, pd.Close(), verbs.ErrBusy)
	require.NotEqual(t, uint32(0), mr.LKey())
	require.NoError(t, p.A.Close())
	_, err = dm.WriteAt(make([]byte, 4), 0)
	require.ErrorIs(t, err, verbs.ErrClosed, "the context has closed both")
	_, err = pd.RegisterDM(dm, 0, 128, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.NoError(t, mr.Close())
	require.NoError(t, dm.Close())
}

// testDeviceMemoryEnds closes the memory, or its context, while others copy and register.
func testDeviceMemoryEnds(t *testing.T, s *suite) {
	for round := range 8 {
		ctx := s.open(t).A
		pd, err := ctx.AllocPD()
		require.NoError(t, err)
		dm, err := ctx.AllocDM(4096)
		require.NoError(t, err)
		var users sync.WaitGroup
		for name, use := range map[string]func() error{
			"ReadAt":  func() error { _, err := dm.ReadAt(make([]byte, 4096), 0); return err },
			"WriteAt": func() error { _, err := dm.WriteAt(make([]byte, 4096), 0); return err },
			"RegisterDM": func() error {
				mr, err := pd.RegisterDM(dm, 0, 64, verbs.AccessLocalWrite)
				if err == nil {
					err = mr.Close()
				}
				return err
			},
			"AllocDM": func() error {
				other, err := ctx.AllocDM(64)
				if err == nil {
					err = other.Close()
				}
				if err == nil {
					_, err = dm.ReadAt(make([]byte, 4), 0)
				}
				return err
			},
		} {
			users.Go(func() {
				for {
					if err := use(); err != nil {
						assert.ErrorIs(t, err, verbs.ErrClosed, name)
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round) * 100 * time.Microsecond)
		for range round % 2 * 1000 { // alone, if there is a moment in which nobody uses it
			err := dm.Close()
			if err == nil {
				break
			}
			require.ErrorIs(t, err, verbs.ErrBusy)
		}
		require.NoError(t, ctx.Close())
		users.Wait() // ends with Close
	}
}
