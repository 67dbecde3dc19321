//go:build linux

package soft_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// While the peer's SRQ decides about a request, one that fails behind it waits: completions keep the
// order of requests, and what the peer receives was not flushed.
func TestARequestThatFailsCompletesAfterThoseBeforeIt(t *testing.T) {
	shared := usual
	shared.srq = true
	for name, fails := range map[string]struct {
		wr     func(a *end) verbs.SendWR
		status verbs.WCStatus
	}{
		"at the peer": {func(a *end) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.OpWrite, RKey: 77, RemoteAddr: 1, Flags: verbs.SendInline, Inline: [][]byte{{1}}}
		}, verbs.WCRemAccessErr},
		"here": {func(a *end) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey() + 1}}}
		}, verbs.WCLocProtErr},
	} {
		for between, pair := range map[string]func(testing.TB){"one process": func(testing.TB) {}, "two processes": soft.PairAsStrangers} {
			t.Run(name+", "+between, func(t *testing.T) {
				pair(t)
				a, b := newPair(t, shared)
				b.postRecv(t)
				wr := fails.wr(a)
				wr.ID = 2
				_, err := a.qp.PostSend([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}, wr, {ID: 3, Opcode: verbs.OpSend}})
				require.NoError(t, err)
				wcs := poll(t, a.send, 3)
				for i, status := range []verbs.WCStatus{verbs.WCSuccess, fails.status, verbs.WCWRFlushErr} {
					require.EqualValues(t, i+1, wcs[i].ID)
					require.Equal(t, status, wcs[i].Status)
				}
				require.Equal(t, verbs.WCSuccess, poll(t, b.recv, 1)[0].Status)
			})
		}
	}
}

// The receiver need not poll for a retry to find what was posted to its SRQ since the last one.
func TestARetryFindsWhatWasPostedToAnSRQ(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		shared := usual
		shared.srq = true
		a, b := newPair(t, shared)
		const rts = verbs.QPStateRTS
		require.NoError(t, a.qp.Driver().Modify(&verbs.QPAttr{State: rts, RNRRetry: 1}, verbs.QPAttrState|verbs.QPAttrRNRRetry))
		require.NoError(t, b.qp.Modify(verbs.QPAttr{State: rts, MinRNRTimer: 0}, verbs.QPAttrState|verbs.QPAttrMinRNRTimer)) // the longest
		before, _ := a.ctx.RNRs()
		_, err := a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		hang.Eventually(t, "there is no receive", func() bool { now, _ := a.ctx.RNRs(); return now > before })
		b.postRecv(t)
		require.Equal(t, verbs.WCSuccess, poll(t, a.send, 1)[0].Status)
	})
}
