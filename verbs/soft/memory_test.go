//go:build linux

package soft

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A segment may be unreachable as soon as release has read where it lies. If the
// collector then took the mapping back, release would put its zeros in the place of
// what was mapped there since.
func TestASegmentStaysMappedUntilItIsReleased(t *testing.T) {
	CheckLeaks(t)
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	defer d.Close()
	s, err := d.newSegment(protocol.GeometryFor(1))
	require.NoError(t, err)
	mem := sys.RangeOf(s.mem).Bytes()
	asked, mapped := false, false
	refuseIf(t, func(call string) error {
		if call != "mmap MAP_FIXED" {
			return nil
		}
		asked = true
		for range 3 {
			collect(t)
		}
		if mapped = isMapped(mem); !mapped {
			return unix.ENOMEM // nor may these zeros lie where others map
		}
		return nil
	})
	s.release()
	require.True(t, asked)
	require.True(t, mapped, "the segment was unmapped while it was released")
}

// collect runs the collector, and returns when cleanups run of what it found.
func collect(t *testing.T) {
	t.Helper()
	found := make(chan struct{})
	runtime.AddCleanup(new(segment), func(found chan struct{}) { close(found) }, found)
	runtime.GC()
	select {
	case <-found:
	case <-time.After(10 * time.Second):
		t.Error("the collector does not find what nobody has")
	}
}

// isMapped reports whether all of mem is mapped.
func isMapped(mem []byte) bool {
	_, err := PagesOfMapping(mem)
	return !errors.Is(err, unix.ENOMEM)
}

// Whoever announces much and has nothing must not make us pay for it.
func TestPeersMemoryIsNotOursToPay(t *testing.T) {
	d := &device{}
	geo := protocol.GeometryFor(protocol.MaxReceives)
	fd := sparseMemfd(t, geo.Size())
	mapping, err := d.mapPeerSegment(fd, geo)
	require.NoError(t, err)
	sys.Unmap(mapping, sys.OfAPeer)
	require.LessOrEqual(t, pagesOf(t, fd), int64(populateLimit))

	const size = 1 << 30
	fd = sparseMemfd(t, size)
	r, err := d.mapRemote(protocol.KeyAnswer{Key: 1, Good: true, Access: verbs.AccessRemoteWrite, Length: size}, fd, protocol.MaxMRSize)
	require.NoError(t, err)
	r.close()
	require.LessOrEqual(t, pagesOf(t, fd), int64(sparseSize))
}

// sparseMemfd returns a memfd as a peer sends it, of which no page exists.
func sparseMemfd(t *testing.T, size int) int {
	t.Helper()
	fd, err := sys.NewMemfd("sparse", size)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, sys.Seal(fd, segmentSeals))
	return fd
}

// What a peer says of its memory is looked at whole, also where an int has 32 bits.
func TestARegionBehindTheEndOfItsMemoryIsRefused(t *testing.T) {
	d := &device{}
	fd, err := sys.NewMemfd("long", 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, 1<<32))
	require.NoError(t, sys.Seal(fd, segmentSeals))
	page := uint64(protocol.PageSize)
	answer := protocol.KeyAnswer{Key: 1, Good: true, Access: verbs.AccessRemoteRead, Offset: 1<<32 - page}
	for length, good := range map[uint64]bool{page: true, 2 * page: false, 1 << 31: false, 1<<32 + page: false} {
		answer.Length = length
		r, err := d.mapRemote(answer, fd, protocol.MaxMRSize)
		if good {
			require.NoError(t, err)
			r.close()
		} else {
			require.Error(t, err, length)
		}
	}
	answer.Offset, answer.Length = page, 1<<32-page // longer than an int of 32 bits
	if r, err := d.mapRemote(answer, fd, protocol.MaxMRSize); err == nil {
		require.Len(t, r.mem, int(answer.Length))
		r.close()
	}
}

// The last who has a memfd frees its memory: for a long one that could keep a thread for many seconds.
func TestNoMoreOfAPeersMemoryIsHeldThanIsUsed(t *testing.T) {
	d := &device{}
	geo := protocol.GeometryFor(1)
	_, err := d.mapPeerSegment(sparseMemfd(t, geo.Size()+1), geo)
	require.Error(t, err)
	page := uint64(protocol.PageSize)
	fd := sparseMemfd(t, 3*protocol.PageSize)
	answer := protocol.KeyAnswer{Key: 1, Good: true, Access: verbs.AccessRemoteWrite, Length: page}
	_, err = d.mapRemote(answer, fd, 2*page)
	require.Error(t, err)
	r, err := d.mapRemote(answer, fd, 2*page+1)
	require.NoError(t, err)
	r.close()
}

func pagesOf(t *testing.T, fd int) (bytes int64) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return st.Blocks * 512
}

func TestSegmentOfMoreReceivesThanAQueueHasIsRefused(t *testing.T) {
	geo := protocol.GeometryFor(protocol.MaxReceives)
	require.NoError(t, geo.Check())
	geo.Receives *= 2
	require.Error(t, geo.Check())
}
