//go:build linux

package soft

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// A SEND has begun with its receive, before a byte of it is sent: the peer's
// buffer may have no room.
func TestSQDrainedWaitsForASendThatHasBegun(t *testing.T) {
	v := newVictim(t, false)
	data := make([]byte, 64<<10) // a quarter of the buffer
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{data}}
	_, err := v.q.PostSend([]verbs.SendWR{send, send, send, send, send})
	require.NoError(t, err)
	draining := func() bool {
		attr, err := v.q.Query()
		require.NoError(t, err)
		return attr.SQDraining
	}
	require.NoError(t, v.q.Modify(&verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.QPAttrState|verbs.QPAttrEnSQDNotify))
	require.Zero(t, v.d.events.Len())
	require.True(t, draining())
	v.peer.Header.Released.Store(4 * uint64(len(data)))
	v.peer.Header.Consumed.Store(4)
	v.q.onProgress()
	require.Equal(t, 1, v.d.events.Len())
	ev, err := v.d.NextEvent()
	require.NoError(t, err)
	require.Equal(t, verbs.EventSQDrained, ev.Type)
	require.False(t, draining())
}

func TestThereIsOnePKey(t *testing.T) {
	dev, err := verbs.Open(DeviceName)
	require.NoError(t, err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQAttr{CQE: 4}, nil)
	require.NoError(t, err)
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC, verbs.QPTypeUD} {
		qp, err := pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq})
		require.NoError(t, err)
		mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
		if typ == verbs.QPTypeUD {
			mask ^= verbs.QPAttrAccess | verbs.QPAttrQKey
		}
		attr := verbs.QPAttr{State: verbs.QPStateInit, Port: 1, PKeyIndex: 1}
		require.ErrorIs(t, qp.Modify(attr, mask), verbs.ErrInvalid, "QP of type %d", typ)
		attr.PKeyIndex = 0
		require.NoError(t, qp.Modify(attr, mask))
	}
}
