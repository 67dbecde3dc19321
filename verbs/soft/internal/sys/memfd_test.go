//go:build linux

package sys

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestNobodyExecutesAMemfd(t *testing.T) {
	fd, err := NewMemfd("test", 1)
	require.NoError(t, err)
	defer unix.Close(fd)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	probe, err := unix.MemfdCreate("test", unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		t.Skip("kernels before 6.3 have no memfds that cannot be executed")
	}
	require.NoError(t, err)
	defer unix.Close(probe)
	require.Zero(t, st.Mode&0o111)
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	require.NotZero(t, seals&unix.F_SEAL_EXEC)
	require.NoError(t, Seal(fd, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL))
}

func TestAnOlderKernelGivesMemfdsToo(t *testing.T) {
	asked := false
	old := func(call string) error {
		if call == "memfd_create with MFD_NOEXEC_SEAL" {
			asked = true
			return unix.EINVAL
		}
		return nil
	}
	Refuse.Store(&old)
	defer Refuse.Store(nil)
	fd, err := NewMemfd("test", 1)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.True(t, asked)
	require.NoError(t, Seal(fd, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL))
}
