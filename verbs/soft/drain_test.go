//go:build linux

package soft_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// What has arrived can be polled at any moment until somebody has, also while it is taken out of the
// ring at the peer's request. Who has armed the CQ and then finds nothing goes to sleep.
func TestWhatArrivedIsSeenWhileThePeerHasItDrained(t *testing.T) {
	rounds := int64(400_000)
	switch {
	case race.Enabled: // the two wait for each other, and each look takes ten times as long
		rounds = 2000
	case testing.Short():
		rounds = 10_000
	}
	a, b := newPair(t, usual)
	warm(t, a, b)
	var begun, done atomic.Int64
	await := func(v *atomic.Int64, n int64) { // ended by the other goroutine
		for i := 1; v.Load() != n; i++ {
			if i%100 == 0 {
				runtime.Gosched()
			}
		}
	}
	go func() { // ends with the last round
		for i := int64(1); i <= rounds; i++ {
			await(&begun, i)
			soft.Drain(b.qp)
			done.Store(i)
		}
	}()
	arrival := b.qp.Driver().(interface{ HasArrival() bool })
	wr := []verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: [][]byte{{1}}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}}
	recv, wcs := make([]verbs.RecvWR, 1), make([]verbs.WC, 4)
	missed := 0
	for i := int64(1); i <= rounds; i++ {
		_, err := b.qp.PostRecv(recv)
		require.NoError(t, err)
		_, err = a.qp.PostSend(wr)
		require.NoError(t, err)
		begun.Store(i)
		for looks := 1; done.Load() != i; looks++ {
			if !arrival.HasArrival() {
				missed++
			}
			if looks%100 == 0 {
				runtime.Gosched()
			}
		}
		n, err := b.recv.Poll(wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	await(&done, rounds)
	require.Zero(t, missed)
}
