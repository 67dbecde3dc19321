package uverbs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// deafFile is a descriptor that is none, so that every command fails after it
// has been laid out.
func deafFile(t testing.TB) *file {
	t.Helper()
	f := &file{fd: -1, driverID: 14}
	t.Cleanup(f.bells.free)
	return f
}

func TestCommandsAreLaidOutForTheIoctl(t *testing.T) {
	f := deafFile(t)
	p, err := takePage()
	require.NoError(t, err)
	defer returnPage(p)
	in := regMRIn{start: 0x1122, pdHandle: 7}
	var out regMROut
	r := request{cmd: cmdRegMR, in: bytesOf(&in), out: bytesOf(&out), extraIn: []byte{1, 2, 3, 4, 5, 6, 7, 8}, extraOut: make([]byte, 8)}
	// The kernel says EBADF, and qemu-user, which does not know the ioctl, ENOSYS.
	err = f.submit(p, &r)
	require.True(t, errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOSYS), "error: %v", err)
	require.Equal(t, ioctlHeader{length: 24 + 5*16, objectID: 0, methodID: 0, numAttrs: 5, driverID: 14}, *viewAt[ioctlHeader](p, 0))
	attr := func(i int) ioctlAttr { return *viewAt[ioctlAttr](p, ioctlHeaderSize+i*ioctlAttributeSize) }
	require.Equal(t, ioctlAttr{attrID: 0, len: 40, flags: 1, data: addressOf(p[pageIn:])}, attr(0))
	require.Equal(t, ioctlAttr{attrID: 1, len: 12, flags: 1, data: addressOf(p[pageOut:])}, attr(1))
	require.Equal(t, ioctlAttr{attrID: 2, len: 8, flags: 1, data: 9}, attr(2))
	driverIn := attr(3)
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, bytesOf(&driverIn.data), "up to eight bytes lie in the attribute")
	require.Equal(t, ioctlAttr{attrID: 0x1001, len: 8, flags: 1, data: addressOf(p[pageOut+12:])}, attr(4))
	require.Equal(t, in, *viewAt[regMRIn](p, pageIn))
}

func TestCommandsAreLaidOutForWrite(t *testing.T) {
	p, err := takePage()
	require.NoError(t, err)
	defer returnPage(p)
	r := request{cmd: cmdRegMR, in: make([]byte, 40), out: make([]byte, 12), extraIn: make([]byte, 8), extraOut: make([]byte, 8)}
	from := writeHeader(p, &r)
	require.Equal(t, pageIn-8, from)
	require.Equal(t, commandHeader{command: 9, inWords: 14, outWords: 5}, *viewAt[commandHeader](p, from))
	require.Equal(t, addressOf(p[pageOut:]), viewAt[regMRIn](p, pageIn).response)

	r = request{cmd: cmdDeregMR, in: []byte{7, 0, 0, 0}}
	copy(p[pageIn:], r.in)
	from = writeHeader(p, &r)
	require.Equal(t, commandHeader{command: 13, inWords: 3}, *viewAt[commandHeader](p, from))
	require.EqualValues(t, 7, viewAt[handleOnly](p, pageIn).handle, "a command without answer has no address of one")

	r = request{cmd: cmdExQueryDevice, in: make([]byte, 8), out: make([]byte, 304)}
	from = writeHeader(p, &r)
	require.Equal(t, pageIn-24, from)
	require.Equal(t, commandHeader{command: 0x80000001, inWords: 1, outWords: 38}, *viewAt[commandHeader](p, from))
	require.Equal(t, extendedHeader{response: addressOf(p[pageOut:])}, *viewAt[extendedHeader](p, from+8))
}

func TestCommandsThatDoNotFitAreRefused(t *testing.T) {
	f := deafFile(t)
	for _, r := range []request{
		{cmd: cmdRegMR, in: make([]byte, pageOut-pageIn+1)},
		{cmd: cmdRegMR, in: make([]byte, 8), extraOut: make([]byte, commandPageSize-pageOut+1)},
	} {
		require.ErrorIs(t, f.submit(make([]byte, commandPageSize), &r), verbs.ErrInvalid)
	}
}

func TestDoorbellsHoldBothForms(t *testing.T) {
	f := deafFile(t)
	in := postSendIn{handle: 5, wqeSize: sendWRSize}
	b, err := f.newDoorbell(cmdPostSend, bytesOf(&in), true)
	require.NoError(t, err)
	require.Equal(t, commandHeader{command: 28, inWords: 8, outWords: 1}, *viewAt[commandHeader](b.cell, cellHeader))
	require.Len(t, b.cell[cellHeader:], 32, "what write takes")
	require.Equal(t, postSendIn{response: addressOf(b.cell[:cellSize][cellAnswer:]), handle: 5, wqeSize: 56}, *viewAt[postSendIn](b.cell, cellCommand))
	require.Equal(t, ioctlHeader{length: 24 + 3*16, numAttrs: 3, driverID: 14}, *viewAt[ioctlHeader](b.cell, 0))
	require.ErrorIs(t, b.ring(true), unix.EBADF)

	arm, err := f.newDoorbell(cmdReqNotifyCQ, bytesOf(&reqNotifyCQIn{handle: 9}), false)
	require.NoError(t, err)
	arm.setWord(1, 1)
	require.Equal(t, reqNotifyCQIn{handle: 9, solicitedOnly: 1}, *viewAt[reqNotifyCQIn](arm.cell, cellCommand))
	first := viewAt[ioctlAttr](arm.cell, ioctlHeaderSize)
	require.Equal(t, arm.cell[cellCommand:cellCommand+8], bytesOf(&first.data), "short commands lie in the attribute")

	free := len(f.bells.idle)
	b.free()
	b.free()
	arm.free()
	require.Len(t, f.bells.idle, free+2)
}
