package verbstest

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testClock reads the device's clock, and compares it with the times of completions.
func testClock(t *testing.T, s *suite) {
	p := s.open(t)
	attr := p.A.Attr()
	if !attr.Caps.Has(verbs.CapClock) {
		_, err := p.A.Clock()
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		t.Skip("the device does not show its clock")
	}
	t.Run("it shows a time between those of the completions before and after", func(t *testing.T) {
		conf := usual
		conf.stamps = true
		a, b := s.connected(t, conf)
		start := time.Now()
		last := a.stampedSend(b)
		for range 100 {
			shown := a.clock()
			done := a.stampedSend(b)
			require.LessOrEqual(t, elapsed(attr, last, shown), elapsed(attr, last, done))
			require.LessOrEqual(t, elapsed(attr, last, done), time.Since(start)+time.Millisecond, "it goes on")
			last = done
		}
	})
	t.Run("it goes on without completions", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		const pause = 20 * time.Millisecond
		first := a.clock()
		start := time.Now()
		time.Sleep(pause)
		// A model sets it when it comes to it.
		for shown := first; elapsed(attr, first, shown) < pause-time.Millisecond; shown = a.clock() {
			require.Less(t, time.Since(start), 10*time.Second)
			time.Sleep(time.Millisecond)
		}
	})
	t.Run("it is not shown once the device is closed", func(t *testing.T) {
		p := s.open(t)
		_, err := p.A.Clock()
		require.NoError(t, err)
		require.NoError(t, p.A.Close())
		_, err = p.A.Clock()
		require.ErrorIs(t, err, verbs.ErrClosed)
	})
}

// elapsed is how far the device's clock has gone. It may have gone round.
func elapsed(attr verbs.DeviceAttr, from, to uint64) time.Duration {
	ticks := (to - from) & attr.TimestampMask
	return time.Duration(float64(ticks) / float64(attr.ClockHz) * float64(time.Second))
}

// stampedSend sends a message to b, and returns when that was done.
func (s *side) stampedSend(b *side) uint64 {
	s.t.Helper()
	b.receive(verbs.RecvWR{ID: 2})
	s.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
	sent := s.sent(1, verbs.WCSuccess)
	b.received(2, verbs.WCSuccess)
	return sent.Timestamp
}

func (s *side) clock() uint64 {
	s.t.Helper()
	shown, err := s.ctx.Clock()
	require.NoError(s.t, err)
	return shown
}
