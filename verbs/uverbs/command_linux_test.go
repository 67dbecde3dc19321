package uverbs

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// deafDevice is a device whose descriptor is none, so that every command
// fails after it has been laid out.
func deafDevice(t testing.TB) *device {
	t.Helper()
	d := newDevice(rdmahost.Device{Name: "test0", DriverID: rdmahost.DriverRXE}, -1)
	d.driver = &rxeContext{mem: d}
	t.Cleanup(d.file.bells.free)
	return d
}

func TestCommandsAreLaidOutForTheIoctl(t *testing.T) {
	d := deafDevice(t)
	p, err := takePage()
	require.NoError(t, err)
	defer returnPage(p)
	in := regMRIn{start: 0x1122, pdHandle: 7}
	var out regMROut
	r := request{cmd: cmdRegMR, in: bytesOf(&in), out: bytesOf(&out), extraIn: []byte{1, 2, 3, 4, 5, 6, 7, 8}, extraOut: make([]byte, 8)}
	// The kernel says EBADF, and qemu-user, which does not know the ioctl, ENOSYS.
	err = d.file.submit(p, &r)
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

func TestCommandsThatDoNotFitAreRefused(t *testing.T) {
	d := deafDevice(t)
	for _, r := range []request{
		{cmd: cmdRegMR, in: make([]byte, pageOut-pageIn+1)},
		{cmd: cmdRegMR, in: make([]byte, 8), extraOut: make([]byte, commandPageSize-pageOut+1)},
	} {
		require.ErrorIs(t, d.run(&r), verbs.ErrInvalid)
	}
}

func TestDoorbellsHoldBothForms(t *testing.T) {
	d := deafDevice(t)
	in := postSendIn{handle: 5, wqeSize: sendWRSize}
	b, err := d.file.newDoorbell(cmdPostSend, bytesOf(&in), true)
	require.NoError(t, err)
	require.Equal(t, commandHeader{command: 28, inWords: 8, outWords: 1}, *viewAt[commandHeader](b.cell, cellHeader))
	require.Len(t, b.cell[cellHeader:], 32, "what write takes")
	require.Equal(t, postSendIn{response: addressOf(b.cell[:cellSize][cellAnswer:]), handle: 5, wqeSize: 56}, *viewAt[postSendIn](b.cell, cellCommand))
	require.Equal(t, ioctlHeader{length: 24 + 3*16, numAttrs: 3, driverID: 14}, *viewAt[ioctlHeader](b.cell, 0))
	require.ErrorIs(t, b.ring(true), unix.EBADF)

	arm, err := d.file.newDoorbell(cmdReqNotifyCQ, bytesOf(&reqNotifyCQIn{handle: 9}), false)
	require.NoError(t, err)
	arm.setWord(1, 1)
	require.Equal(t, reqNotifyCQIn{handle: 9, solicitedOnly: 1}, *viewAt[reqNotifyCQIn](arm.cell, cellCommand))
	first := viewAt[ioctlAttr](arm.cell, ioctlHeaderSize)
	require.Equal(t, arm.cell[cellCommand:cellCommand+8], bytesOf(&first.data), "short commands lie in the attribute")

	free := len(d.file.bells.idle)
	b.free()
	b.free()
	arm.free()
	require.Len(t, d.file.bells.idle, free+2)
}

func TestErrorsOfTheKernelAreTranslated(t *testing.T) {
	d := deafDevice(t)
	for errno, want := range map[unix.Errno]error{
		unix.EBUSY: verbs.ErrBusy, unix.EINVAL: verbs.ErrInvalid, unix.EOPNOTSUPP: verbs.ErrUnsupported, unix.ENOSYS: verbs.ErrUnsupported,
		unix.EPROTONOSUPPORT: verbs.ErrUnsupported, unix.EACCES: fs.ErrPermission, unix.ENOMEM: unix.ENOMEM, unix.EAGAIN: unix.EAGAIN,
		unix.EIO: unix.EIO, // the device is there
	} {
		err := d.failed("CREATE_QP", errno)
		require.ErrorIs(t, err, want, "%v", errno)
		require.ErrorContains(t, err, "CREATE_QP: ")
	}
	plain := errors.New("plain")
	require.Equal(t, plain, d.failed("CREATE_QP", plain))
	require.False(t, d.gone.Load())
}

func TestADeviceOfAnUnknownDriverCannotBeOpened(t *testing.T) {
	_, err := openDevice(rdmahost.Device{Name: "mlx5_0", Driver: "mlx5", DriverID: 1})
	require.ErrorIs(t, err, verbs.ErrUnsupported)
	require.ErrorContains(t, err, "mlx5_0")
	require.ErrorContains(t, err, `"mlx5"`)
}

func TestAClosedDeviceTakesNoCommands(t *testing.T) {
	d := deafDevice(t)
	d.closed = true
	_, err := d.QueryDevice()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.AllocPD()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.mmap(0, 4096, mayRead)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.queryGIDTable(make([]gidEntry, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
}

func TestPagesForCommandsAreZero(t *testing.T) {
	p, err := takePage()
	require.NoError(t, err)
	for i := range p {
		p[i] = 0xff
	}
	returnPage(p)
	for range pagesKept + 2 {
		p, err := takePage()
		require.NoError(t, err)
		require.Equal(t, make([]byte, commandPageSize), p)
		defer returnPage(p)
	}
}
