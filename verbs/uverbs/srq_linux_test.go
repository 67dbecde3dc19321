package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestAnSRQWhoseNewQueueCannotBeMappedTakesNothing(t *testing.T) {
	k := new(rxeKernel)
	d := deafDevice(t)
	d.submit = func([]byte, *request) error { return nil }
	queue, err := k.openSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, k.queue(0, 3, 9))
	require.NoError(t, err)
	s := &srq{dev: d, queue: queue}
	receive := []verbs.RecvWR{{ID: 1}}
	n, err := s.PostRecv(receive)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	delete(k.maps, 0)
	require.ErrorIs(t, s.Modify(verbs.SRQAttr{MaxWR: 4}, verbs.SRQAttrMaxWR), errNoMapping)
	n, err = s.PostRecv(receive)
	require.ErrorIs(t, err, errNoMapping)
	require.Zero(t, n)
	require.ErrorIs(t, s.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQAttrLimit), errNoMapping)
}

func TestAnSRQThatTheKernelDoesNotChangeStaysAsItWas(t *testing.T) {
	k := new(rxeKernel)
	queue, err := k.openSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, k.queue(0, 3, 9))
	require.NoError(t, err)
	s := &srq{dev: deafDevice(t), queue: queue}
	require.Error(t, s.Modify(verbs.SRQAttr{MaxWR: 4}, verbs.SRQAttrMaxWR))
	n, err := s.PostRecv([]verbs.RecvWR{{ID: 1}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}
