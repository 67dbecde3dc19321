package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

func TestDMABuffersAreRegisteredByTheirOwnMethod(t *testing.T) {
	p, err := abi.TakePage()
	require.NoError(t, err)
	defer abi.ReturnPage(p)
	call := layDMABuf(p, regDMABuf{pd: 7, fd: -2, offset: 0x1000, length: 0x2000, iova: 0x3000, access: verbs.AccessLocalWrite | verbs.AccessRemoteRead})
	require.Error(t, call.Run(&deviceWithoutFile(t).file)) // writes the header
	require.Equal(t, abi.IoctlHeader{Length: 24 + 9*16, ObjectID: 7, MethodID: 4, NumAttrs: 9, DriverID: 14}, *abi.ViewAt[abi.IoctlHeader](p, 0))
	attr := func(i int) abi.IoctlAttr {
		return *abi.ViewAt[abi.IoctlAttr](p, abi.IoctlHeaderSize+i*abi.IoctlAttributeSize)
	}
	for i, want := range []abi.IoctlAttr{
		{AttrID: 0, Flags: 1}, // a handle to be, of which there is no length
		{AttrID: 1, Flags: 1, Data: 7},
		{AttrID: 2, Flags: 1, Len: 8, Data: 0x1000},
		{AttrID: 3, Flags: 1, Len: 8, Data: 0x2000},
		{AttrID: 4, Flags: 1, Len: 8, Data: 0x3000},
	} {
		require.Equal(t, want, attr(i))
	}
	for i, want := range map[int]uint32{5: 1<<32 - 2, 6: 1 | 4} {
		a := attr(i)
		require.EqualValues(t, i, a.AttrID)
		require.EqualValues(t, 4, a.Len)
		require.Equal(t, want, *abi.ViewAt[uint32](abi.BytesOf(&a.Data), 0), "up to eight bytes lie in the attribute")
	}
	require.Equal(t, abi.IoctlAttr{AttrID: 7, Flags: 1, Len: 4, Data: abi.AddressOf(p[abi.PageOut:])}, attr(7))
	require.Equal(t, abi.IoctlAttr{AttrID: 8, Flags: 1, Len: 4, Data: abi.AddressOf(p[abi.PageOut+8:])}, attr(8))
}

func TestAdviceIsGivenByAMethodOfItsOwn(t *testing.T) {
	p, err := abi.TakePage()
	require.NoError(t, err)
	defer abi.ReturnPage(p)
	call := layAdvice(p, 7, verbs.AdvicePrefetchWrite, []verbs.SGE{{Addr: 1 << 40, Length: 5, LKey: 6}, {Addr: 2, Length: 3, LKey: 4}})
	require.Error(t, call.Run(&deviceWithoutFile(t).file)) // writes the header
	require.Equal(t, abi.IoctlHeader{Length: 24 + 4*16, ObjectID: 7, MethodID: 2, NumAttrs: 4, DriverID: 14}, *abi.ViewAt[abi.IoctlHeader](p, 0))
	for i, want := range []abi.IoctlAttr{
		{AttrID: 0, Flags: 1, Data: 7},
		{AttrID: 1, Flags: 1, Len: 8, Data: 1},
		{AttrID: 2, Flags: 1, Len: 8, Data: 1}, // flush
		{AttrID: 3, Flags: 1, Len: 32, Data: abi.AddressOf(p[abi.PageIn:])},
	} {
		require.Equal(t, want, *abi.ViewAt[abi.IoctlAttr](p, abi.IoctlHeaderSize+i*abi.IoctlAttributeSize))
	}
	require.Equal(t, []scatterEntry{{1 << 40, 5, 6}, {2, 3, 4}}, []scatterEntry{
		*abi.ViewAt[scatterEntry](p, abi.PageIn), *abi.ViewAt[scatterEntry](p, abi.PageIn+16),
	})
	require.Len(t, make([]scatterEntry, maxAdvised), (2048-512)/16)
}
