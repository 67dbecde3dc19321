//go:build amd64 || arm64

package ibverbs

import (
	"os"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Functions of the C library of the system, which is there without devices.
func TestCallsPassArgumentsAndErrno(t *testing.T) {
	find := func(name string) uintptr {
		address, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
		require.NoError(t, err)
		return address
	}
	defer func(where uintptr) { errnoLocation = where }(errnoLocation)
	errnoLocation = find("__errno_location")

	size := uintptr(os.Getpagesize())
	memory, err := handle(find("mmap"), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON, ^uintptr(0), 0)
	require.NoError(t, err, "six arguments")
	*view[uint32](memory) = 7
	require.EqualValues(t, 7, *view[uint32](memory))
	require.NoError(t, status(find("munmap"), memory, size))
	require.Equal(t, unix.EINVAL, status(find("munmap"), memory+1, size), "-1 and errno")

	path := terminated("/there is no such file")
	_, err = handle(find("fopen"), uintptr(unsafe.Pointer(&path[0])), uintptr(unsafe.Pointer(&terminated("r")[0])))
	require.Equal(t, unix.ENOENT, err, "NULL and errno")
	require.EqualValues(t, os.Getpid(), number(find("getpid")))
}
