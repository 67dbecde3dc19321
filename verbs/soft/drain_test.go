//go:build linux

package soft_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

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
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := int64(1); ; i++ {
			for looks := 1; begun.Load() != i; looks++ {
				if over.Load() {
					return
				}
				if looks%100 == 0 {
					runtime.Gosched()
				}
			}
			soft.Drain(b.qp)
			done.Store(i)
		}
	}()
	defer func() {
		over.Store(true)
		<-ended
	}()
	arrival := b.qp.Driver().(interface{ HasArrival() bool })
	wr := []verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Inline: [][]byte{{1}}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}}
	recv, wcs := make([]verbs.RecvWR, 1), make([]verbs.WC, 4)
	missed := 0
	// On a busy machine each round may wait for a processor.
	for i, begin := int64(1), time.Now(); i <= rounds && time.Since(begin) < 5*time.Second; i++ {
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
	require.Zero(t, missed)
}
