//go:build linux

package sys

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Where the kernel does not take a mapping back, its memory is free all the same;
// but not a peer's, who may be using it.
func TestMemoryOfAMappingThatStaysIsFreed(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		whose Backing
		left  int64
	}{
		"ours":     {OfMemfd, 0},
		"a peer's": {OfAPeer, size},
	} {
		t.Run(name, func(t *testing.T) {
			fd, err := NewMemfd("sparse", size)
			require.NoError(t, err)
			defer unix.Close(fd)
			mem, err := MapFD(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE)
			require.NoError(t, err)
			for at := 0; at < size; at += unix.Getpagesize() {
				mem[at] = 1
			}
			require.Equal(t, int64(size), bytesOf(t, fd))
			var m mappingsLeft
			refuseUnmap(t)
			m.unmap(mem, c.whose)
			Refuse.Store(nil)
			require.Equal(t, 1, m.count())
			require.Equal(t, c.left, bytesOf(t, fd))
			require.True(t, m.oldest()[0].unmap())
		})
	}
}

func refuseUnmap(t *testing.T) {
	munmap := func(call string) error {
		if call == "munmap" {
			return unix.ENOMEM
		}
		return nil
	}
	Refuse.Store(&munmap)
	t.Cleanup(func() { Refuse.Store(nil) })
}

// bytesOf returns how much memory a memfd has.
func bytesOf(t *testing.T, fd int) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return st.Blocks * 512
}

// Whoever frees memory takes back a bounded number of mappings that were left.
func TestMappingsThatWereLeftAreTakenBackInParts(t *testing.T) {
	var m mappingsLeft
	one := func() []byte {
		mem, err := MapAnonymous(unix.Getpagesize(), 0)
		require.NoError(t, err)
		return mem
	}
	const parts = 3
	refuseUnmap(t)
	for range parts * unmapAtOnce {
		m.unmap(one(), OfNobody)
	}
	require.Equal(t, parts*unmapAtOnce, m.count())
	Refuse.Store(nil)
	for left := parts - 1; left >= 0; left-- {
		m.unmap(one(), OfNobody)
		require.Equal(t, left*unmapAtOnce, m.count())
	}
}
