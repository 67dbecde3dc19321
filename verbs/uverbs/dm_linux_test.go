package uverbs

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

func TestMemoryOfADeviceIsMadeWithTheDriversAttributes(t *testing.T) {
	p, err := abi.TakePage()
	require.NoError(t, err)
	defer abi.ReturnPage(p)
	call := layAllocDM(p, 100, []driver.Attr{{ID: 0x1000, Out: make([]byte, 8)}, {ID: 0x1001, Out: make([]byte, 2)}})
	requireCall(t, call, 14, 0,
		abi.IoctlAttr{AttrID: 0, Flags: 1}, // a handle to be
		abi.IoctlAttr{AttrID: 1, Flags: 1, Len: 8, Data: 100},
		abi.IoctlAttr{AttrID: 2, Flags: 1, Len: 4},
		abi.IoctlAttr{AttrID: 0x1000, Flags: 1, Len: 8, Data: abi.AddressOf(p[abi.PageOut:])},
		abi.IoctlAttr{AttrID: 0x1001, Flags: 1, Len: 2, Data: abi.AddressOf(p[abi.PageOut+8:])})
}

func TestMemoryOfADeviceIsRegisteredByItsOwnMethod(t *testing.T) {
	p, err := abi.TakePage()
	require.NoError(t, err)
	defer abi.ReturnPage(p)
	call := layRegDM(p, regDM{pd: 7, memory: 9, offset: 64, length: 36, access: verbs.AccessLocalWrite | verbs.AccessZeroBased})
	var access abi.IoctlAttr
	*abi.ViewAt[uint32](abi.BytesOf(&access.Data), 0) = 1 | 32
	requireCall(t, call, 7, 0,
		abi.IoctlAttr{AttrID: 0, Flags: 1},
		abi.IoctlAttr{AttrID: 1, Flags: 1, Len: 8, Data: 64},
		abi.IoctlAttr{AttrID: 2, Flags: 1, Len: 8, Data: 36},
		abi.IoctlAttr{AttrID: 3, Flags: 1, Data: 7},
		abi.IoctlAttr{AttrID: 4, Flags: 1, Len: 4, Data: access.Data},
		abi.IoctlAttr{AttrID: 5, Flags: 1, Data: 9},
		abi.IoctlAttr{AttrID: 6, Flags: 1, Len: 4, Data: abi.AddressOf(p[abi.PageOut:])},
		abi.IoctlAttr{AttrID: 7, Flags: 1, Len: 4, Data: abi.AddressOf(p[abi.PageOut+8:])})
}

// requireCall gives the call to no device, which lays out its header, and compares it.
func requireCall(t *testing.T, call abi.Call, object, method uint16, attrs ...abi.IoctlAttr) {
	t.Helper()
	require.Error(t, call.Run(&deviceWithoutFile(t).file))
	n := uint16(len(attrs))
	require.Equal(t, abi.IoctlHeader{Length: 24 + n*16, ObjectID: object, MethodID: method, NumAttrs: n, DriverID: 14}, *abi.ViewAt[abi.IoctlHeader](call.Page, 0))
	require.Equal(t, attrs, abi.SliceAt[abi.IoctlAttr](call.Page, abi.IoctlHeaderSize, len(attrs)))
}

// memoryOfTest is a driver's memory of a device.
type memoryOfTest struct {
	driver.DM
	copied   chan struct{}
	goOn     chan struct{}
	unmapped bool
}

func (m *memoryOfTest) Read([]byte, int) error {
	m.copied <- struct{}{}
	<-m.goOn
	return nil
}

func (m *memoryOfTest) Unmap() { m.unmapped = true }

func TestMemoryOfADeviceStaysMappedWhileItIsCopied(t *testing.T) {
	d := deviceWithoutFile(t)
	mem := &memoryOfTest{copied: make(chan struct{}), goOn: make(chan struct{})}
	m := &deviceMemory{dev: d, memory: mem}
	read := make(chan error)
	go func() { read <- m.Read(nil, 0) }() // ends when the copy may go on
	<-mem.copied
	require.ErrorIs(t, m.Free(), verbs.ErrBusy)
	require.False(t, mem.unmapped)
	require.False(t, d.life.TryLock(), "nor can the device be closed")
	close(mem.goOn)
	require.Error(t, <-read, "nobody says that there is a device")
	for range 2 {
		err := m.Free() // there is no kernel
		require.Error(t, err)
		require.NotErrorIs(t, err, verbs.ErrBusy)
		require.NotErrorIs(t, err, verbs.ErrClosed)
		require.False(t, mem.unmapped)
	}
	m.abandon()
	require.True(t, mem.unmapped)
	require.ErrorIs(t, m.Free(), verbs.ErrClosed)
	require.ErrorIs(t, m.Read(nil, 0), verbs.ErrClosed)
}

// slowMemory is a driver whose AllocDM ends when it may.
type slowMemory struct {
	driver.Context
	memory memoryOfTest
	mapped chan struct{}
	goOn   chan struct{}
	closed bool
}

func (c *slowMemory) AllocDM(int, func([]driver.Attr) error) (driver.DM, error) {
	close(c.mapped)
	<-c.goOn
	return &c.memory, nil
}

func (c *slowMemory) Close() { c.closed = true }

func TestADeviceIsNotClosedBeforeMemoryThatIsBeingMade(t *testing.T) {
	d := deviceWithoutFile(t)
	events, other, err := os.Pipe()
	require.NoError(t, err)
	defer other.Close()
	d.events.Open(events, "")
	ctx := &slowMemory{mapped: make(chan struct{}), goOn: make(chan struct{})}
	d.driver = ctx
	made := make(chan error)
	go func() { _, err := d.AllocDM(64); made <- err }() // ends when it may go on
	<-ctx.mapped
	closed := make(chan error)
	go func() { closed <- d.Close() }() // ends with AllocDM
	require.Eventually(t, func() bool {
		d.life.RLock()
		defer d.life.RUnlock()
		return d.closed
	}, time.Minute, time.Millisecond)
	select {
	case <-closed:
		t.Error("Close has returned while memory was mapped")
	case <-time.After(20 * time.Millisecond):
	}
	require.False(t, ctx.closed)
	close(ctx.goOn)
	<-made // of the two the one or the other is first
	require.Error(t, <-closed, "there is no descriptor")
	require.True(t, ctx.memory.unmapped)
	require.True(t, ctx.closed)
	require.Empty(t, d.all())
}
