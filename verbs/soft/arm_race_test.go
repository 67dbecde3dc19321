//go:build linux

package soft

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
)

// A peer may take the arm word at once, for what was polled before, and who waits then looks
// before an event is expected, and parks again. Such an arming must not be the last.
func TestAnEventThatComesWhileTheCQIsArmedIsExpected(t *testing.T) {
	s := newStranger(t)
	s.pair()
	in := s.v.q.in
	arm := &in.seg.Header.Arm
	procs := runtime.GOMAXPROCS(0)
	var over, looks, missed atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !over.Load() {
			looks.Store(true)
			if w := arm.Load(); w&protocol.ArmArmed != 0 && arm.CompareAndSwap(w, w&^protocol.ArmArmed) {
				missed.Store(!in.expected.Load()) // as hasEvent, after a wake
			}
			looks.Store(false)
			if procs == 1 {
				runtime.Gosched()
			}
		}
	}()
	for begin, i := time.Now(), 0; i < 20000 && time.Since(begin) < 2*time.Second; i++ {
		in.expected.Store(false)
		in.arm(protocol.ArmArmed)
		for arm.Load()&protocol.ArmArmed != 0 || looks.Load() {
			runtime.Gosched()
		}
		if missed.Load() {
			break
		}
	}
	over.Store(true)
	<-ended
	require.False(t, missed.Load(), "the wake-up is lost")
}
