package rnet

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnQueueKeepsOrder(t *testing.T) {
	var q connQueue
	a, b, c := new(Conn), new(Conn), new(Conn)
	for _, x := range []*Conn{a, b, c, a} {
		q.push(x, txLink)
	}
	q.remove(b, txLink)
	q.remove(b, txLink)
	require.Same(t, a, q.pop(txLink))
	require.Same(t, c, q.pop(txLink))
	require.True(t, q.empty())
	require.Nil(t, q.first())
}

func TestConnQueueLetsOneInAtTheHead(t *testing.T) {
	var q connQueue
	a, b, c := new(Conn), new(Conn), new(Conn)
	q.pushFirst(b, txLink)
	q.push(c, txLink)
	q.pushFirst(a, txLink)
	q.pushFirst(c, txLink) // is in it already
	for _, x := range []*Conn{a, b, c} {
		require.Same(t, x, q.pop(txLink))
	}
	require.True(t, q.empty())
}

func TestConnCanBeInBothQueues(t *testing.T) {
	var tx, ctl connQueue
	a, b := new(Conn), new(Conn)
	tx.push(a, txLink)
	tx.push(b, txLink)
	ctl.push(b, ctlLink)
	ctl.push(a, ctlLink)
	tx.remove(a, txLink)
	require.Same(t, b, ctl.pop(ctlLink))
	require.Same(t, a, ctl.pop(ctlLink))
	require.Same(t, b, tx.pop(txLink))
}

func TestConnQueueBehavesLikeAList(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	conns := make([]*Conn, 10)
	for i := range conns {
		conns[i] = new(Conn)
	}
	var q connQueue
	var model []*Conn
	for range 10000 {
		c := conns[rnd.Intn(len(conns))]
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
