package mux

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWaitQueueKeepsOrder(t *testing.T) {
	var q waitQueue
	a, b, c := new(sendHalf), new(sendHalf), new(sendHalf)
	for _, x := range []*sendHalf{a, b, c, a} {
		q.push(x, roomLink)
	}
	q.remove(b, roomLink)
	q.remove(b, roomLink)
	require.Same(t, a, q.pop(roomLink))
	require.Same(t, c, q.pop(roomLink))
	require.True(t, q.empty())
	require.Nil(t, q.first())
}

func TestWaitQueueLetsOneInAtItsHead(t *testing.T) {
	var q waitQueue
	a, b, c := new(sendHalf), new(sendHalf), new(sendHalf)
	q.pushFirst(b, roomLink)
	q.push(c, roomLink)
	q.pushFirst(a, roomLink)
	q.pushFirst(c, roomLink) // is in it already
	for _, x := range []*sendHalf{a, b, c} {
		require.Same(t, x, q.pop(roomLink))
	}
	require.True(t, q.empty())
}

func TestAStreamCanBeInTwoWaitQueues(t *testing.T) {
	var tx, ctl waitQueue
	a, b := new(sendHalf), new(sendHalf)
	tx.push(a, roomLink)
	tx.push(b, roomLink)
	ctl.push(b, ctlLink)
	ctl.push(a, ctlLink)
	tx.remove(a, roomLink)
	require.Same(t, b, ctl.pop(ctlLink))
	require.Same(t, a, ctl.pop(ctlLink))
	require.Same(t, b, tx.pop(roomLink))
}

func TestWaitQueueBehavesLikeAList(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	halves := make([]*sendHalf, 10)
	for i := range halves {
		halves[i] = new(sendHalf)
	}
	var q waitQueue
	var model []*sendHalf
	for range 10000 {
		c := halves[rnd.Intn(len(halves))]
		switch rnd.Intn(3) {
		case 0:
			q.push(c, ctlLink)
			if !slices.Contains(model, c) {
				model = append(model, c)
			}
		case 1:
			q.remove(c, ctlLink)
			if i := slices.Index(model, c); i >= 0 {
				model = slices.Delete(model, i, i+1)
			}
		case 2:
			if len(model) > 0 {
				require.Same(t, model[0], q.pop(ctlLink))
				model = model[1:]
			}
		}
		require.Equal(t, len(model) == 0, q.empty())
	}
}
