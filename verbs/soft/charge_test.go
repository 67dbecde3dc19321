//go:build linux

package soft

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sparseMemfd returns a memfd as a peer sends it, of which no page exists.
func sparseMemfd(t *testing.T, size int) int {
	t.Helper()
	fd, err := newMemfd("sparse", size)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, seal(fd, segmentSeals))
	return fd
}

func pagesOf(t *testing.T, fd int) (bytes int64) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return st.Blocks * 512
}

// Whoever announces much and has nothing must not make us pay for it.
func TestPeersMemoryIsNotOursToPay(t *testing.T) {
	d := &device{}
	geo := geometryFor(maxReceives)
	fd := sparseMemfd(t, geo.size())
	mapping, err := d.mapPeerSegment(fd, geo)
	require.NoError(t, err)
	unmap(mapping, ofAPeer)
	require.LessOrEqual(t, pagesOf(t, fd), int64(populateLimit))

	const size = 1 << 30
	fd = sparseMemfd(t, size)
	r, err := d.mapRemote(keyAnswer{key: 1, good: true, access: verbs.AccessRemoteWrite, length: size}, fd)
	require.NoError(t, err)
	r.close()
	require.LessOrEqual(t, pagesOf(t, fd), int64(sparseSize))
}

func TestSegmentOfMoreReceivesThanAQueueHasIsRefused(t *testing.T) {
	geo := geometryFor(maxReceives)
	require.NoError(t, geo.check())
	geo.receives *= 2
	require.Error(t, geo.check())
}

// Where the kernel does not take a mapping back, its memory is free all the same;
// but not a peer's, who may be using it.
func TestMemoryOfAMappingThatStaysIsFreed(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		whose backing
		left  int64
	}{
		"ours":     {ofMemfd, 0},
		"a peer's": {ofAPeer, size},
	} {
		t.Run(name, func(t *testing.T) {
			fd := sparseMemfd(t, size)
			mem, err := mapFD(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE)
			require.NoError(t, err)
			for at := 0; at < size; at += unix.Getpagesize() {
				mem[at] = 1
			}
			require.Equal(t, int64(size), pagesOf(t, fd))
			var m mappingsLeft
			refuseUnmap(t)
			m.unmap(mem, c.whose)
			refuse.Store(nil)
			require.Equal(t, 1, m.count())
			require.Equal(t, c.left, pagesOf(t, fd))
			require.True(t, m.oldest()[0].unmap())
		})
	}
}

func refuseUnmap(t *testing.T) {
	refuseIf(t, func(call string) error {
		if call == "munmap" {
			return unix.ENOMEM
		}
		return nil
	})
}

// Whoever frees memory takes back a bounded number of mappings that were left.
func TestMappingsThatWereLeftAreTakenBackInParts(t *testing.T) {
	var m mappingsLeft
	one := func() []byte {
		mem, err := mapAnonymous(pageSize, 0)
		require.NoError(t, err)
		return mem
	}
	const parts = 3
	refuseUnmap(t)
	for range parts * unmapAtOnce {
		m.unmap(one(), ofNobody)
	}
	require.Equal(t, parts*unmapAtOnce, m.count())
	refuse.Store(nil)
	for left := parts - 1; left >= 0; left-- {
		m.unmap(one(), ofNobody)
		require.Equal(t, left*unmapAtOnce, m.count())
	}
}
