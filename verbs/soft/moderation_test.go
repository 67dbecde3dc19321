//go:build linux

package soft

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/stretchr/testify/require"
)

// A CQ of the channel that has nothing leaves the others to be looked at, in whatever order they come.
func TestAnEmptyCQDoesNotEndWhatAnotherHoldsBack(t *testing.T) {
	v := newVictim(t, false)
	require.NoError(t, v.recv.Moderate(4, time.Hour))
	v.receive()
	v.arriveHonestly(descriptorCopy{kind: protocol.KindWriteImm})
	for range 20 {
		period, err := v.ch.collect()
		require.NoError(t, err)
		require.Equal(t, time.Hour, period)
	}
}
