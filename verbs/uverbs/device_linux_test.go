package uverbs

import (
	"errors"
	"io/fs"
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
	t.Cleanup(d.file.FreeDoorbells)
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
