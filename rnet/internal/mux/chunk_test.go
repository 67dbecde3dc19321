package mux

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewChunkHasRoom(t *testing.T) {
	for _, n := range []int{1, 1 << 10, 1<<10 + 1, 16 << 10, 64 << 10, 64<<10 + 1, 1 << 20} {
		k := NewChunk(n)
		require.Empty(t, k.buf)
		require.GreaterOrEqual(t, cap(k.buf), n)
		k.Recycle()
	}
}

func TestRecycledChunkIsEmpty(t *testing.T) {
	k := NewChunk(10)
	k.buf = append(k.buf, "left"...)
	k.r, k.busy = 2, true
	k.Recycle()
	for range 10 { // the pool may give out another one
		k = NewChunk(10)
		require.Empty(t, k.Unread())
		require.False(t, k.busy || k.inRing)
		require.Nil(t, k.next)
	}
}

func TestSmallPayloadsGatherInOneChunk(t *testing.T) {
	var q chunkQueue
	for range 16 {
		q.appendCopy([]byte("0123456789abcdef"))
	}
	require.Same(t, q.head, q.tail)
	require.Equal(t, bytes.Repeat([]byte("0123456789abcdef"), 16), q.head.Unread())
}

func TestNothingIsAppendedToAChunkThatIsRead(t *testing.T) {
	for name, prepare := range map[string]func(k *Chunk){
		"busy":    func(k *Chunk) { k.busy = true },
		"in ring": func(k *Chunk) { k.inRing = true },
		"full":    func(k *Chunk) { k.buf = k.buf[:cap(k.buf)] },
	} {
		var q chunkQueue
		q.appendCopy([]byte("first"))
		prepare(q.head)
		q.appendCopy([]byte("second"))
		require.NotSame(t, q.head, q.tail, name)
		require.Equal(t, "second", string(q.tail.Unread()), name)
	}
}
