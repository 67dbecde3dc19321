package rnet

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/ring"
)

func TestNewChunkHasRoom(t *testing.T) {
	for _, n := range []int{1, 1 << 10, 1<<10 + 1, 16 << 10, 64 << 10, 64<<10 + 1, 1 << 20} {
		k := newChunk(n)
		require.Empty(t, k.buf)
		require.GreaterOrEqual(t, cap(k.buf), n)
		k.recycle()
	}
}

func TestRecycledChunkIsEmpty(t *testing.T) {
	k := newChunk(10)
	k.buf = append(k.buf, "left"...)
	k.r, k.busy = 2, true
	k.recycle()
	for range 10 { // the pool may give out another one
		k = newChunk(10)
		require.Empty(t, k.unread())
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
	require.Equal(t, bytes.Repeat([]byte("0123456789abcdef"), 16), q.head.unread())
}

func TestNothingIsAppendedToAChunkThatIsRead(t *testing.T) {
	for name, prepare := range map[string]func(k *chunk){
		"busy":    func(k *chunk) { k.busy = true },
		"in ring": func(k *chunk) { k.inRing = true },
		"full":    func(k *chunk) { k.buf = k.buf[:cap(k.buf)] },
	} {
		var q chunkQueue
		q.appendCopy([]byte("first"))
		prepare(q.head)
		q.appendCopy([]byte("second"))
		require.NotSame(t, q.head, q.tail, name)
		require.Equal(t, "second", string(q.tail.unread()), name)
	}
}

func TestKeptRingForgetsFreedChunksFromTheFront(t *testing.T) {
	var rx ring.Rx
	require.NoError(t, rx.Init(minRingSize))
	var q keptRing
	var kept []*chunk
	for range 5 {
		_, err := rx.Place(100)
		require.NoError(t, err)
		k := &chunk{inRing: true, token: rx.Retain()}
		q.add(k)
		kept = append(kept, k)
	}
	q.remove(kept[1].token)
	q.remove(kept[2].token)
	require.EqualValues(t, 5, q.tail-q.head, "the first one is still there")
	require.Equal(t, 3, q.count)
	q.remove(kept[0].token)
	require.EqualValues(t, 2, q.tail-q.head)
	require.Same(t, kept[3], *q.at(q.head))
	q.remove(kept[4].token)
	q.remove(kept[3].token)
	require.Zero(t, q.count)
	require.Equal(t, q.head, q.tail)
}

func TestKeptRingGrowsInOrder(t *testing.T) {
	var rx ring.Rx
	require.NoError(t, rx.Init(maxRingSize))
	var q keptRing
	var kept []*chunk
	rnd := newRand(1)
	for range 1000 {
		_, err := rx.Place(16)
		require.NoError(t, err)
		k := &chunk{inRing: true, token: rx.Retain()}
		q.add(k)
		kept = append(kept, k)
		if rnd.IntN(3) > 0 && len(kept) > 0 {
			i := rnd.IntN(len(kept))
			q.remove(kept[i].token)
			kept = slices.Delete(kept, i, i+1)
		}
		require.Equal(t, len(kept), q.count)
		for _, k := range kept {
			require.Same(t, k, *q.at(k.token.Seq()))
		}
	}
}
