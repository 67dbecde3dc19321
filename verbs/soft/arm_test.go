//go:build linux

package soft_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// Who armed before a completion came gets the event, also if somebody else
// arms in that very moment.
func TestTheEventOfAFailedCompletionIsNotLostBesideArm(t *testing.T) {
	e := newEnd(t, usual)
	own, err := e.address()
	require.NoError(t, err)
	require.NoError(t, e.connect(own))
	require.NoError(t, e.qp.Fail()) // what is posted now completes at once, flushed
	post := []verbs.SendWR{{Opcode: verbs.OpSend}}
	for range 20_000 {
		require.NoError(t, e.send.Arm(true))
		var ready atomic.Int32
		var group sync.WaitGroup
		together := func(f func()) {
			group.Go(func() {
				ready.Add(1)
				for try := 1; ready.Load() < 2; try++ { // ends when the other is there
					if try%1000 == 0 {
						runtime.Gosched() // it may need this processor of Go
					}
				}
				f()
			})
		}
		together(func() { _, _ = e.qp.PostSend(post) })
		together(func() {
			for range 4 {
				_ = e.send.Arm(false)
				_ = e.send.Arm(true)
			}
		})
		group.Wait()
		poll(t, e.send, 1)
		require.NoError(t, e.ch.Wait(time.Now().Add(5*time.Second)))
	}
}
