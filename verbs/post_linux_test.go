package verbs_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestPostAndPollAllocateNothing(t *testing.T) {
	b := newBench(t)
	qp, peer := b.connected(t)
	payload := make([]byte, 8)
	send := []verbs.SendWR{{Opcode: verbs.OpSendWithImm, Flags: verbs.SendInline, Inline: [][]byte{payload}}}
	// A receive without room for eight bytes would fail the QP.
	mr, err := b.pd.AllocMR(64, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	recv := []verbs.RecvWR{{SGL: []verbs.SGE{mr.SGE(0, 64)}}}
	wcs := make([]verbs.WC, 4)
	round := func() {
		if _, err := peer.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
		if _, err := qp.PostSend(send); err != nil {
			t.Fatal(err)
		}
		for n := 0; n == 0; {
			if n, err = b.cq.Poll(wcs); err != nil || n > 0 && wcs[0].Err() != nil {
				t.Fatal(err, wcs[0])
			}
		}
	}
	round() // the QPs find each other
	require.Zero(t, testing.AllocsPerRun(200, round))
	require.NoError(t, qp.Fail())
	require.NoError(t, mr.Close())
}
