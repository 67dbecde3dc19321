package verbstest

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testTimestamps compares the times of completions with the clock of the process.
func testTimestamps(t *testing.T, s *suite) {
	attr := s.open(t).A.Attr()
	if !attr.Caps.Has(verbs.CapTimestamps) {
		require.Zero(t, attr.ClockHz&attr.TimestampMask)
		a, _ := s.sides(t, usual)
		_, err := a.ctx.CreateCQ(verbs.CQAttr{CQE: 1, Timestamps: true}, nil)
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		_, err = a.ctx.WallTime(0)
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		t.Skip("the device gives completions no time")
	}
	conf := usual
	conf.stamps = true
	a, b := s.connected(t, conf)
	send := func() (sent, received uint64) {
		b.receive(verbs.RecvWR{ID: 2})
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		return a.sent(1, verbs.WCSuccess).Timestamp, b.received(2, verbs.WCSuccess).Timestamp
	}
	start := time.Now()
	sent, received := send()
	testWallTime(t, a, start, sent)
	require.NotZero(t, sent)
	require.NotZero(t, received)
	const pause, slack = 20 * time.Millisecond, time.Millisecond // of two clocks
	time.Sleep(pause)
	sentAgain, receivedAgain := send()
	all := time.Since(start)
	for name, took := range map[string]time.Duration{"sends": elapsed(attr, sent, sentAgain), "receives": elapsed(attr, received, receivedAgain)} {
		require.GreaterOrEqual(t, took, pause-slack, name)
		require.LessOrEqual(t, took, all+slack, name)
	}
}

// testWallTime asks when something was that was between start and now.
func testWallTime(t *testing.T, s *side, start time.Time, timestamp uint64) {
	at, err := s.ctx.WallTime(timestamp)
	if !s.ctx.Attr().Caps.Has(verbs.CapWallTime) {
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		return
	}
	require.NoError(t, err)
	const slack = 100 * time.Millisecond // clocks are set
	require.WithinRange(t, at, start.Add(-slack), time.Now().Add(slack))
}
