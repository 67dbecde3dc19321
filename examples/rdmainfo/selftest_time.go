package main

import (
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// timestamps compares the clock of the device with that of the host.
func (t *deviceTest) timestamps(l *loop) error {
	const pause, slack = 20 * time.Millisecond, time.Millisecond
	attr := t.ctx.Attr()
	// between returns how far the device's clock has gone. It may have gone round.
	between := func(from, to uint64) time.Duration {
		return time.Duration(float64((to-from)&attr.TimestampMask) / float64(attr.ClockHz) * float64(time.Second))
	}
	var stamps [2][2]uint64 // of a SEND and of its receive, before the pause and after it
	began := time.Now()
	for i := range stamps {
		if i > 0 {
			time.Sleep(pause)
		}
		recv, err := l.b.receive(0, 8)
		if err != nil {
			return err
		}
		sent, err := l.a.post(verbs.SendWR{Opcode: verbs.OpSend})
		if err != nil {
			return err
		}
		for j, of := range []struct {
			end *end
			id  uint64
		}{{l.a, sent}, {l.b, recv}} {
			wc, err := of.end.succeed(of.id)
			if err != nil {
				return err
			}
			if wc.Timestamp == 0 {
				return fmt.Errorf("a completion of %v has no time", wc.Opcode)
			}
			stamps[i][j] = wc.Timestamp
		}
	}
	all := time.Since(began)
	for j, name := range []string{"SENDs", "receives"} {
		if took := between(stamps[0][j], stamps[1][j]); took < pause-slack || took > all+slack {
			return fmt.Errorf("%v between two %s by the device's clock, and %v to %v by that of the host", took, name, pause, all)
		}
	}
	t.figures = fmt.Sprintf(": a clock of %.6g MHz", float64(attr.ClockHz)/1e6)
	if attr.Caps.Has(verbs.CapClock) {
		now, err := t.ctx.Clock()
		if err != nil {
			return err
		}
		if behind := between(stamps[1][1], now); behind > time.Since(began) {
			return fmt.Errorf("the clock shows %v after the last completion, and the check has taken %v", behind, time.Since(began))
		}
	}
	if attr.Caps.Has(verbs.CapWallTime) {
		at, err := t.ctx.WallTime(stamps[1][1])
		if err != nil {
			return err
		}
		// The network may have set the device's clock: that is no mistake.
		t.figures += fmt.Sprintf(", %v from the host's", time.Until(at).Abs().Round(time.Millisecond))
	}
	return nil
}

// moderated has events wait for more completions, or for the period. A device may count that from
// its last event, so of several waits one behind the other most are long. A wait may end early, and
// a process may wait for its processor: each is tried until it comes out right.
func (t *deviceTest) moderated(l *loop) error {
	const count, tries = 4, 200
	attr := t.ctx.Attr()
	period := min(attr.MaxModerationPeriod, 4*time.Millisecond).Truncate(time.Microsecond)
	if err := l.b.cq.Moderate(count, period); err != nil {
		return err
	}
	for _, c := range []struct {
		messages int
		late     bool
		wrong    string
	}{
		{count - 1, true, "too few completions raise an event at once"},
		{count, false, "enough completions raise no event before the period is over"},
		{1, false, "without moderation a completion raises no event before the period is over"},
	} {
		if c.messages == 1 {
			if err := l.b.cq.Moderate(0, 0); err != nil {
				return err
			}
		}
		found := false
		for i := 0; i < tries && !found; i++ {
			took, err := l.wakeUp(c.messages)
			if err != nil {
				return err
			}
			found = (took >= period*3/4) == c.late
		}
		if !found {
			return fmt.Errorf("%s: of a count of %d and a period of %v, %d times", c.wrong, count, period, tries)
		}
	}
	return nil
}

// wakeUp returns how long b sleeps while messages of a arrive.
func (l *loop) wakeUp(messages int) (time.Duration, error) {
	var received, sent []uint64
	for range messages {
		id, err := l.b.receive(0, 8)
		if err != nil {
			return 0, err
		}
		received = append(received, id)
	}
	if err := l.b.cq.Arm(false); err != nil {
		return 0, err
	}
	began := time.Now()
	for range messages {
		id, err := l.a.post(verbs.SendWR{Opcode: verbs.OpSend})
		if err != nil {
			return 0, err
		}
		sent = append(sent, id)
	}
	if err := l.b.ch.Wait(time.Now().Add(loopTimeout)); err != nil { // ends with the event
		return 0, fmt.Errorf("no event: %w", err)
	}
	took := time.Since(began)
	for i := range messages {
		if _, err := l.a.succeed(sent[i]); err != nil {
			return 0, err
		}
		if _, err := l.b.succeed(received[i]); err != nil {
			return 0, err
		}
	}
	return took, nil
}
