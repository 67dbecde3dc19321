package link

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/ring"
)

type nobody struct{}

func (nobody) MoveOut() bool { return false }

func TestHoldersForgetFreedPiecesFromTheFront(t *testing.T) {
	var rx ring.Rx
	require.NoError(t, rx.Init(MinRing))
	var q holders
	var kept []ring.Token
	for range 5 {
		_, err := rx.Place(100)
		require.NoError(t, err)
		token := rx.Retain()
		q.add(token, nobody{})
		kept = append(kept, token)
	}
	q.remove(kept[1])
	q.remove(kept[2])
	require.EqualValues(t, 5, q.tail-q.head, "the first one is still there")
	require.Equal(t, 3, q.count)
	q.remove(kept[0])
	require.EqualValues(t, 2, q.tail-q.head)
	require.Equal(t, kept[3], q.at(q.head).token)
	q.remove(kept[4])
	q.remove(kept[3])
	require.Zero(t, q.count)
	require.Equal(t, q.head, q.tail)
}

func TestHoldersGrowInOrder(t *testing.T) {
	var rx ring.Rx
	require.NoError(t, rx.Init(MaxRing))
	var q holders
	var kept []ring.Token
	rnd := rand.New(rand.NewPCG(1, 0))
	for range 1000 {
		_, err := rx.Place(16)
		require.NoError(t, err)
		token := rx.Retain()
		q.add(token, nobody{})
		kept = append(kept, token)
		if rnd.IntN(3) > 0 && len(kept) > 0 {
			i := rnd.IntN(len(kept))
			q.remove(kept[i])
			kept = slices.Delete(kept, i, i+1)
		}
		require.Equal(t, len(kept), q.count)
		for _, k := range kept {
			require.Equal(t, k, q.at(k.Seq()).token)
		}
	}
}
