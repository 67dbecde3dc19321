package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestWhatTheKernelSaysOfADestroyedCQIsTold(t *testing.T) {
	c := &cq{dev: deafDevice(t), queue: newSiwCQ(t, 4)}
	err := c.Destroy()
	require.Error(t, err)
	require.NotErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, c.Destroy(), verbs.ErrClosed)
}
