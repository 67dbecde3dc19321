//go:build amd64 || arm64

package ibverbs_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
)

// loopWithMemory is a loop on a device that has memory of its own.
func loopWithMemory(t *testing.T) *loop {
	t.Helper()
	l := newLoop(t, ibverbs.ProviderName)
	ctx := l.qp.PD().Context()
	if !ctx.Attr().Caps.Has(verbs.CapDeviceMemory) {
		_, err := ctx.AllocDM(64)
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		require.Zero(t, ctx.Attr().MaxDMSize)
		t.Skip("the device has no memory of its own")
	}
	return l
}

func TestRequestsReachTheMemoryOfADevice(t *testing.T) {
	l := loopWithMemory(t)
	pd := l.qp.PD()
	dm, err := pd.Context().AllocDM(128)
	require.NoError(t, err)
	require.Equal(t, 128, dm.Len())
	mr, err := pd.RegisterDM(dm, 64, 64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	require.Nil(t, mr.Bytes())
	require.Zero(t, mr.Addr())

	// To it, at byte 64+8, and from there to the process.
	message := []byte("of the device 20")
	copy(l.mr.Bytes(), message)
	_, err = l.qp.PostSend([]verbs.SendWR{
		{Opcode: verbs.OpWrite, SGL: []verbs.SGE{l.mr.SGE(0, len(message))}, RemoteAddr: 8, RKey: mr.RKey()},
		{Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Addr: 8, Length: uint32(len(message)), LKey: mr.LKey()}},
			RemoteAddr: l.mr.Addr() + 100, RKey: l.mr.RKey()},
	})
	require.NoError(t, err)
	l.drain(t, 1)
	require.Equal(t, message, l.mr.Bytes()[100:][:len(message)])
	got := make([]byte, len(message))
	n, err := dm.ReadAt(got, 64+8)
	require.NoError(t, err)
	require.Equal(t, len(message), n)
	require.Equal(t, message, got)

	n, err = dm.WriteAt([]byte("OF T"), 64+8)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	_, err = l.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Addr: 8, Length: 4, LKey: mr.LKey()}},
		RemoteAddr: l.mr.Addr() + 100, RKey: l.mr.RKey(),
	}})
	require.NoError(t, err)
	l.drain(t, 1)
	require.Equal(t, "OF The device 20", string(l.mr.Bytes()[100:][:len(message)]))

	require.ErrorIs(t, dm.Close(), verbs.ErrBusy)
	require.NoError(t, mr.Close())
	require.NoError(t, dm.Close())
	_, err = dm.ReadAt(got, 0)
	require.ErrorIs(t, err, verbs.ErrClosed)
}

func TestEveryOperationReachesTheMemoryOfADevice(t *testing.T) {
	l := loopWithMemory(t)
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	require.NoError(t, l.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Access: access}, verbs.QPAttrState|verbs.QPAttrAccess))
	other := openWith(t, ibverbs.ProviderName)
	memory := make([]*verbs.DM, 2)
	for i, ctx := range []*verbs.Context{l.qp.PD().Context(), other} {
		var err error
		memory[i], err = ctx.AllocDM(64)
		require.NoError(t, err)
	}
	mr, err := l.qp.PD().RegisterDM(memory[0], 0, 64, access)
	require.NoError(t, err)
	word := binary.NativeEndian.AppendUint64(nil, 40)
	for _, dm := range memory {
		_, err := dm.WriteAt(word, 16)
		require.NoError(t, err)
	}
	_, err = l.qp.PostRecv([]verbs.RecvWR{{}, {SGL: []verbs.SGE{{Addr: 32, Length: 8, LKey: mr.LKey()}}}})
	require.NoError(t, err)
	_, err = l.qp.PostSend([]verbs.SendWR{
		{Opcode: verbs.OpFetchAdd, CompareAdd: 2, SGL: []verbs.SGE{l.mr.SGE(0, 8)}, RemoteAddr: 16, RKey: mr.RKey()},
		{Opcode: verbs.OpCompareSwap, CompareAdd: 42, Swap: 43, SGL: []verbs.SGE{l.mr.SGE(8, 8)}, RemoteAddr: 16, RKey: mr.RKey()},
		{Opcode: verbs.OpRead, SGL: []verbs.SGE{l.mr.SGE(16, 8)}, RemoteAddr: 16, RKey: mr.RKey()},
		{Opcode: verbs.OpWriteWithImm, Flags: verbs.SendFence, SGL: []verbs.SGE{l.mr.SGE(8, 8)}, RemoteAddr: 24, RKey: mr.RKey()},
		{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{l.mr.SGE(16, 8)}},
	})
	require.NoError(t, err)
	l.drain(t, 3)
	for i, want := range []uint64{40, 42, 43} {
		require.Equal(t, want, binary.NativeEndian.Uint64(l.mr.Bytes()[8*i:]))
	}
	got := make([]byte, 24)
	_, err = memory[0].ReadAt(got, 16)
	require.NoError(t, err)
	for i, want := range []uint64{43, 42, 43} {
		require.Equal(t, want, binary.NativeEndian.Uint64(got[8*i:]))
	}
	_, err = memory[1].ReadAt(got[:8], 16)
	require.NoError(t, err)
	require.Equal(t, word, got[:8], "that of the other context is its own")
	require.NoError(t, memory[1].Close())
	require.NoError(t, memory[1].Close(), "once more")
}

func TestWhatIsNotInTheMemoryOfADeviceIsRefused(t *testing.T) {
	pd := loopWithMemory(t).qp.PD()
	ctx := pd.Context()
	for _, length := range []int{-1, 0} {
		_, err := ctx.AllocDM(length)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	_, err := ctx.AllocDM(int(ctx.Attr().MaxDMSize) + 1)
	require.Error(t, err)
	dm, err := ctx.AllocDM(128)
	require.NoError(t, err)
	for _, place := range []struct{ offset, length int }{{-4, 8}, {124, 8}, {132, 0}, {0, 132}, {2, 4}, {4, 2}} {
		_, err = dm.ReadAt(make([]byte, place.length), int64(place.offset))
		require.ErrorIs(t, err, verbs.ErrInvalid, place)
		_, err = dm.WriteAt(make([]byte, place.length), int64(place.offset))
		require.ErrorIs(t, err, verbs.ErrInvalid, place)
	}
	for _, place := range []struct{ offset, length int }{{-4, 8}, {124, 8}, {0, 0}, {0, -4}, {0, 132}} {
		_, err = pd.RegisterDM(dm, place.offset, place.length, verbs.AccessLocalWrite)
		require.ErrorIs(t, err, verbs.ErrInvalid, place)
	}
	_, err = pd.RegisterDM(nil, 0, 64, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = pd.RegisterDM(dm, 0, 64, verbs.AccessOnDemand)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = pd.RegisterDM(dm, 0, 64, verbs.AccessRemoteWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid, "peers may write it and its owner may not")
	other := openWith(t, ibverbs.ProviderName)
	foreign, err := other.AllocPD()
	require.NoError(t, err)
	_, err = foreign.RegisterDM(dm, 0, 64, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	mr, err := pd.RegisterDM(dm, 0, 128, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.ErrorIs(t, mr.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess), verbs.ErrUnsupported)
} // the context closes both
