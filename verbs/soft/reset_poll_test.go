//go:build linux

package soft

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/stretchr/testify/require"
)

// A poll finds that the peer lies, and another goroutine takes the QP to RESET before the poll has failed it. It
// is ready for another peer then.
func TestALieOfAFormerPeerDoesNotFailTheQP(t *testing.T) {
	v := newVictim(t, false)
	v.arrive(descriptorCopy{kind: protocol.KindWriteImm}) // for which there is no receive
	c := v.recv
	c.pollMu.Lock()
	require.Zero(t, c.take(make([]verbs.WC, 1)))
	broken, toNotify := c.takeTold()
	c.pollMu.Unlock()
	require.Len(t, broken, 1)
	require.NoError(t, v.q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	require.NoError(t, v.q.Modify(&verbs.QPAttr{State: verbs.QPStateInit}, verbs.QPAttrState))
	tell(broken, toNotify)
	require.Equal(t, stateInit, v.q.state.Load())
}
