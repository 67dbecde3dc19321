package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestAnSRQWhoseNewQueueCannotBeMappedTakesNothing(t *testing.T) {
	k := new(rxeKernel)
	maps := k.queue(0, 3, 9)
	made := madeSRQ{attr: verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, extra: bytesOf(&maps)}
	queue, err := openRxeSRQ(k, made)
	require.NoError(t, err)
	s := &srq{dev: deafDevice(t), queue: queue}
	receive := []verbs.RecvWR{{ID: 1}}
	n, err := s.PostRecv(receive)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.ErrorIs(t, s.remap(made), unix.EBADF)
	n, err = s.PostRecv(receive)
	require.ErrorIs(t, err, unix.EBADF)
	require.Zero(t, n)
	require.ErrorIs(t, s.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQAttrLimit), unix.EBADF)
}
