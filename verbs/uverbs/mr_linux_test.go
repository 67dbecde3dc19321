package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestDMABuffersAreRegisteredByTheirOwnMethod(t *testing.T) {
	p, err := takePage()
	require.NoError(t, err)
	defer returnPage(p)
	call := layDMABuf(p, regDMABuf{pd: 7, fd: -2, offset: 0x1000, length: 0x2000, iova: 0x3000, access: verbs.AccessLocalWrite | verbs.AccessRemoteRead})
	require.Error(t, call.run(&deafDevice(t).file)) // writes the header
	require.Equal(t, ioctlHeader{length: 24 + 9*16, objectID: 7, methodID: 4, numAttrs: 9, driverID: 14}, *viewAt[ioctlHeader](p, 0))
	attr := func(i int) ioctlAttr { return *viewAt[ioctlAttr](p, ioctlHeaderSize+i*ioctlAttributeSize) }
	for i, want := range []ioctlAttr{
		{attrID: 0, flags: 1}, // a handle to be, of which there is no length
		{attrID: 1, flags: 1, data: 7},
		{attrID: 2, flags: 1, len: 8, data: 0x1000},
		{attrID: 3, flags: 1, len: 8, data: 0x2000},
		{attrID: 4, flags: 1, len: 8, data: 0x3000},
	} {
		require.Equal(t, want, attr(i))
	}
	for i, want := range map[int]uint32{5: 1<<32 - 2, 6: 1 | 4} {
		a := attr(i)
		require.EqualValues(t, i, a.attrID)
		require.EqualValues(t, 4, a.len)
		require.Equal(t, want, *viewAt[uint32](bytesOf(&a.data), 0), "up to eight bytes lie in the attribute")
	}
	require.Equal(t, ioctlAttr{attrID: 7, flags: 1, len: 4, data: addressOf(p[pageOut:])}, attr(7))
	require.Equal(t, ioctlAttr{attrID: 8, flags: 1, len: 4, data: addressOf(p[pageOut+8:])}, attr(8))
}
