package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// A link that can send no more, because a post has failed, has requests left that the
// device executes. What they read from is not freed before they are done, or the QP
// is closed.
func TestDiscardedMemoryStaysWhileTheDeviceReadsIt(t *testing.T) {
	const size = 256 << 10
	u, _ := pair(t, soft.DeviceName, MinRing)
	before := verbs.PinnedBytes()
	b, err := u.link.NewBuffer(size)
	require.NoError(t, err)
	u.send.Lock()
	b.sent = Mark{Requests: u.link.requests + 1}
	u.link.Stop()
	u.send.Unlock()
	b.Discard()
	require.GreaterOrEqual(t, verbs.PinnedBytes()-before, int64(size), "the device reads it")
	u.link.freeBuffers()
	require.GreaterOrEqual(t, verbs.PinnedBytes()-before, int64(size), "the device reads it")
	u.end()
	require.Less(t, verbs.PinnedBytes()-before, int64(0), "all of the link is freed, and the buffer")
}

// Nobody discards another one, nor makes one.
func TestDiscardedMemoryIsFreedSoonAfterTheDeviceHasReadIt(t *testing.T) {
	const size = 256 << 10
	u, _ := pair(t, soft.TestDeviceName, MinRing)
	before := verbs.PinnedBytes()
	b, err := u.link.NewBuffer(size)
	require.NoError(t, err)
	u.send.Lock()
	require.NoError(t, u.link.SendFrom(Header{Stream: 1, Kind: 9}, b, 0, MinPiece))
	u.send.Unlock()
	b.Discard()
	require.GreaterOrEqual(t, verbs.PinnedBytes()-before, int64(size), "nobody has polled")
	u.until("the completion", func() bool { return u.link.Reached(b.Sent()) })
	_, err = u.link.KeepAlive()
	require.NoError(t, err)
	require.Less(t, verbs.PinnedBytes()-before, int64(size))
}
