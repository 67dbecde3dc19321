package uverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestWhatWasPostedInSQDIsSentThoughNothingIsSignaled(t *testing.T) {
	a, b := rxeEnds(t)
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true},
		verbs.QPAttrState|verbs.QPAttrEnSQDNotify))
	ev, err := a.ctx.NextEvent() // ends with the event, or with the time limit of the tests
	require.NoError(t, err)
	require.Equal(t, verbs.EventSQDrained, ev.Type)
	wr := a.send[0]
	wr.Flags = 0
	_, err = a.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState))
	require.Equal(t, verbs.WCSuccess, b.one(t).Status)
}
