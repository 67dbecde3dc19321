//go:build linux

package soft

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sparseMemfd returns a memfd as a peer sends it, of which no page exists.
func sparseMemfd(t *testing.T, size int) int {
	t.Helper()
	fd, err := sys.NewMemfd("sparse", size)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, sys.Seal(fd, segmentSeals))
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
	geo := protocol.GeometryFor(protocol.MaxReceives)
	fd := sparseMemfd(t, geo.Size())
	mapping, err := d.mapPeerSegment(fd, geo)
	require.NoError(t, err)
	sys.Unmap(mapping, sys.OfAPeer)
	require.LessOrEqual(t, pagesOf(t, fd), int64(populateLimit))

	const size = 1 << 30
	fd = sparseMemfd(t, size)
	r, err := d.mapRemote(protocol.KeyAnswer{Key: 1, Good: true, Access: verbs.AccessRemoteWrite, Length: size}, fd)
	require.NoError(t, err)
	r.close()
	require.LessOrEqual(t, pagesOf(t, fd), int64(sparseSize))
}

func TestSegmentOfMoreReceivesThanAQueueHasIsRefused(t *testing.T) {
	geo := protocol.GeometryFor(protocol.MaxReceives)
	require.NoError(t, geo.Check())
	geo.Receives *= 2
	require.Error(t, geo.Check())
}
