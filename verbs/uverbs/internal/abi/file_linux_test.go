package abi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// invalidFile is a descriptor that is none, so that every command fails after it
// has been laid out.
func invalidFile(t testing.TB) *File {
	t.Helper()
	f := &File{FD: -1, DriverID: 14}
	t.Cleanup(f.prepared.free)
	return f
}

func TestCommandsAreLaidOutForTheIoctl(t *testing.T) {
	f := invalidFile(t)
	p, err := TakePage()
	require.NoError(t, err)
	defer ReturnPage(p)
	in := RegMRIn{Start: 0x1122, PDHandle: 7}
	var out RegMROut
	r := Request{Cmd: CmdRegMR, In: BytesOf(&in), Out: BytesOf(&out), UdataIn: []byte{1, 2, 3, 4, 5, 6, 7, 8}, UdataOut: make([]byte, 8)}
	// The kernel says EBADF, and qemu-user, which does not know the ioctl, ENOSYS.
	err = f.Submit(p, &r)
	require.True(t, errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOSYS), "error: %v", err)
	require.Equal(t, IoctlHeader{Length: 24 + 5*16, ObjectID: 0, MethodID: 0, NumAttrs: 5, DriverID: 14}, *ViewAt[IoctlHeader](p, 0))
	attr := func(i int) IoctlAttr { return *ViewAt[IoctlAttr](p, IoctlHeaderSize+i*IoctlAttributeSize) }
	require.Equal(t, IoctlAttr{AttrID: 0, Len: 40, Flags: 1, Data: AddressOf(p[PageIn:])}, attr(0))
	require.Equal(t, IoctlAttr{AttrID: 1, Len: 12, Flags: 1, Data: AddressOf(p[PageOut:])}, attr(1))
	require.Equal(t, IoctlAttr{AttrID: 2, Len: 8, Flags: 1, Data: 9}, attr(2))
	driverIn := attr(3)
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, BytesOf(&driverIn.Data), "up to eight bytes lie in the attribute")
	require.Equal(t, IoctlAttr{AttrID: 0x1001, Len: 8, Flags: 1, Data: AddressOf(p[PageOut+12:])}, attr(4))
	require.Equal(t, in, *ViewAt[RegMRIn](p, PageIn))
}

func TestCommandsAreLaidOutForWrite(t *testing.T) {
	p, err := TakePage()
	require.NoError(t, err)
	defer ReturnPage(p)
	r := Request{Cmd: CmdRegMR, In: make([]byte, 40), Out: make([]byte, 12), UdataIn: make([]byte, 8), UdataOut: make([]byte, 8)}
	from := writeHeader(p, &r)
	require.Equal(t, PageIn-8, from)
	require.Equal(t, CommandHeader{Command: 9, InWords: 14, OutWords: 5}, *ViewAt[CommandHeader](p, from))
	require.Equal(t, AddressOf(p[PageOut:]), ViewAt[RegMRIn](p, PageIn).Response)

	r = Request{Cmd: CmdDeregMR, In: []byte{7, 0, 0, 0}}
	copy(p[PageIn:], r.In)
	from = writeHeader(p, &r)
	require.Equal(t, CommandHeader{Command: 13, InWords: 3}, *ViewAt[CommandHeader](p, from))
	require.EqualValues(t, 7, ViewAt[HandleOnly](p, PageIn).Handle, "a command without answer has no address of one")

	r = Request{Cmd: CmdExQueryDevice, In: make([]byte, 8), Out: make([]byte, 304)}
	from = writeHeader(p, &r)
	require.Equal(t, PageIn-24, from)
	require.Equal(t, CommandHeader{Command: 0x80000001, InWords: 1, OutWords: 38}, *ViewAt[CommandHeader](p, from))
	require.Equal(t, extendedHeader{Response: AddressOf(p[PageOut:])}, *ViewAt[extendedHeader](p, from+8))
}

func TestCommandsThatDoNotFitAreRefused(t *testing.T) {
	f := invalidFile(t)
	for _, r := range []Request{
		{Cmd: CmdRegMR, In: make([]byte, PageOut-PageIn+1)},
		{Cmd: CmdRegMR, In: make([]byte, 8), UdataOut: make([]byte, commandPageSize-PageOut+1)},
	} {
		require.ErrorIs(t, f.Submit(make([]byte, commandPageSize), &r), verbs.ErrInvalid)
	}
}

func TestPreparedCommandsHoldBothForms(t *testing.T) {
	f := invalidFile(t)
	in := PostSendIn{Handle: 5, WQESize: SendWRSize}
	b, err := f.Prepare(CmdPostSend, BytesOf(&in), true)
	require.NoError(t, err)
	require.Equal(t, CommandHeader{Command: 28, InWords: 8, OutWords: 1}, *ViewAt[CommandHeader](b.cell, cellHeader))
	require.Len(t, b.cell[cellHeader:], 32, "what write takes")
	require.Equal(t, PostSendIn{Response: AddressOf(b.cell[:CellSize][cellAnswer:]), Handle: 5, WQESize: 56}, *ViewAt[PostSendIn](b.cell, cellCommand))
	require.Equal(t, IoctlHeader{Length: 24 + 3*16, NumAttrs: 3, DriverID: 14}, *ViewAt[IoctlHeader](b.cell, 0))
	require.ErrorIs(t, b.Run(true), unix.EBADF)

	arm, err := f.Prepare(CmdReqNotifyCQ, BytesOf(&ReqNotifyCQIn{Handle: 9}), false)
	require.NoError(t, err)
	arm.SetWord(1, 1)
	require.Equal(t, ReqNotifyCQIn{Handle: 9, SolicitedOnly: 1}, *ViewAt[ReqNotifyCQIn](arm.cell, cellCommand))
	first := ViewAt[IoctlAttr](arm.cell, IoctlHeaderSize)
	require.Equal(t, arm.cell[cellCommand:cellCommand+8], BytesOf(&first.Data), "short commands lie in the attribute")

	free := len(f.prepared.idle)
	b.Free()
	b.Free()
	arm.Free()
	require.Len(t, f.prepared.idle, free+2)
}
