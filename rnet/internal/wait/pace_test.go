package wait

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/stretchr/testify/require"
)

// A peer is one whose messages a policy waits for.
type peer interface {
	// next returns when the next message is taken in after t, by who polls or sleeps, and how
	// many there are then.
	next(t time.Duration, polls bool) (time.Duration, int)
}

// answering sends a message when it has ours.
type answering struct{ polled, slept time.Duration }

func (a answering) next(t time.Duration, polls bool) (time.Duration, int) {
	if polls {
		return t + a.polled, 1
	}
	return t + a.slept, 1
}

// pacing sends one each period, whatever we do.
type pacing struct{ period, wakeUp time.Duration }

func (p pacing) next(t time.Duration, polls bool) (time.Duration, int) {
	at := (t/p.period + 1) * p.period
	if polls {
		return at, 1
	}
	return at + p.wakeUp, 1 + int((at+p.wakeUp)/p.period-at/p.period)
}

// waitFor goes through so many waits from t on, and returns when they are over. Of the last half it
// says which part polling has ended, and which part of the time was polled in vain.
func waitFor(p *policy, from peer, t time.Duration, waits int) (end time.Duration, ended, inVain float64) {
	var since, vain time.Duration
	hits := 0
	for i := range waits {
		if i == waits/2 {
			since, vain, hits = t, 0, 0
		}
		most, polls := p.mayPoll(t)
		at, messages := from.next(t, polls)
		switch {
		case polls && at-t <= most:
			hits++
			p.hit(at - t)
		case polls:
			vain += most
			p.tokens -= int64(most)
			p.pace.miss()
			at, messages = from.next(t+most, false)
		}
		p.pace.arrived += messages
		t = at + 5*time.Microsecond
	}
	return t, float64(hits) / float64((waits+1)/2), float64(vain) / float64(t-since)
}

func TestPollingIsForWhatItGains(t *testing.T) {
	const us = time.Microsecond
	answersSooner := answering{60 * us, 100 * us}
	answersSlowly := answering{150 * us, 220 * us}
	answersAnyway := answering{60 * us, 70 * us}
	soon := answering{25 * us, 26 * us}
	often := pacing{50 * us, 20 * us}
	seldom := pacing{150 * us, 40 * us}
	rare := pacing{time.Millisecond, 40 * us}
	for name, turns := range map[string][]struct {
		from  peer
		polls bool
	}{
		"who answers sooner":             {{answersSooner, true}},
		"who answers slowly, and sooner": {{answersSlowly, true}},
		"who answers no sooner":          {{answersAnyway, false}},
		"who answers at once":            {{soon, true}},
		"messages at a pace":             {{often, false}},
		"seldom":                         {{seldom, false}},
		"rarely":                         {{rare, false}},
		"in turn":                        {{often, false}, {answersSooner, true}, {seldom, false}, {answersSlowly, true}, {often, false}, {soon, true}},
	} {
		t.Run(name, func(t *testing.T) {
			p := new(policy)
			p.init(&Config{Profile: fallback.Balanced})
			at := time.Second
			for _, turn := range turns {
				var ended, inVain float64
				at, ended, inVain = waitFor(p, turn.from, at, 20_000)
				require.Less(t, inVain, 0.05, "%+v", turn.from)
				if turn.polls {
					require.Greater(t, ended, 0.95, "%+v", turn.from)
				} else {
					require.Less(t, ended, 0.1, "%+v", turn.from)
				}
			}
		})
	}
}
