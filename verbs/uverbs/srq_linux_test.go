package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

func TestAnSRQWhoseNewQueueCannotBeMappedTakesNothing(t *testing.T) {
	mem := make(sharedMemory)
	d := deviceWithoutFile(t)
	d.submit = func([]byte, *abi.Request) error { return nil }
	s := &srq{dev: d, queue: newRxeSRQ(t, mem, 3, 4)}
	receive := []verbs.RecvWR{{ID: 1}}
	n, err := s.PostRecv(receive)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	delete(mem, rxeSRQOffset)
	require.ErrorIs(t, s.Modify(verbs.SRQAttr{MaxWR: 4}, verbs.SRQAttrMaxWR), errNoMapping)
	n, err = s.PostRecv(receive)
	require.ErrorIs(t, err, errNoMapping)
	require.Zero(t, n)
	require.ErrorIs(t, s.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQAttrLimit), errNoMapping)
}

func TestAnSRQThatTheKernelDoesNotChangeStaysAsItWas(t *testing.T) {
	s := &srq{dev: deviceWithoutFile(t), queue: newRxeSRQ(t, make(sharedMemory), 3, 4)}
	require.Error(t, s.Modify(verbs.SRQAttr{MaxWR: 4}, verbs.SRQAttrMaxWR))
	n, err := s.PostRecv([]verbs.RecvWR{{ID: 1}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}
