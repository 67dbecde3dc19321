package uverbs

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/rxe"
)

// deviceWithoutFile is a device whose descriptor is none, so that every command
// fails after it has been laid out.
func deviceWithoutFile(t testing.TB) *device {
	t.Helper()
	d := newDevice(rdmahost.Device{Name: "test0", DriverID: rdmahost.DriverRXE}, -1)
	d.driver = sharedMemory{}.context(t, rxe.Driver{})
	t.Cleanup(d.file.FreePrepared)
	return d
}

func TestErrorsOfTheKernelAreTranslated(t *testing.T) {
	d := deviceWithoutFile(t)
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

// pageDriver maps a page of the device when it is opened, and unmaps it in Close.
type pageDriver struct{ opened func() }

type pageContext struct {
	driver.Context
	mem  driver.Memory
	page []byte
}

func (p pageDriver) Open(mem driver.Memory, getContext func(driver.Udata) error) (driver.Context, error) {
	if err := getContext(driver.Udata{}); err != nil {
		return nil, err
	}
	page, err := mem.Map(0, unix.Getpagesize(), driver.MayWrite)
	if err != nil {
		return nil, err
	}
	p.opened()
	return &pageContext{mem: mem, page: page}, nil
}

func (c *pageContext) Close() { c.mem.Unmap(c.page) }

func TestADeviceWithoutEventsLeavesNothingMapped(t *testing.T) {
	const name = "ramjet-device-without-events"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(unix.Getpagesize())))
	mapped := func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Contains(string(maps), name)
	}
	d := newDevice(rdmahost.Device{Name: "test0"}, fd)
	d.submit = func(_ []byte, r *abi.Request) error {
		abi.ViewAt[abi.GetContextOut](r.Out, 0).AsyncFD = 1<<31 - 1 // no descriptor of this process
		return nil
	}
	opened := false
	err = d.openContext(pageDriver{func() {
		opened = true
		require.True(t, mapped())
	}})
	require.ErrorIs(t, err, unix.EBADF)
	require.True(t, opened)
	require.False(t, mapped())
}

func TestAClosedDeviceTakesNoCommands(t *testing.T) {
	d := deviceWithoutFile(t)
	d.closed = true
	_, err := d.QueryDevice()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.AllocPD()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.Map(0, 4096, driver.MayRead)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.queryGIDTable(make([]abi.GIDEntry, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
}
