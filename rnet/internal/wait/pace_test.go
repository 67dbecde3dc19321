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

// several are so many that answer together.
type several struct {
	peer
	n int
}

func (s several) next(t time.Duration, polls bool) (time.Duration, int) {
	at, messages := s.peer.next(t, polls)
	return at, s.n * messages
}

// pausing is a peer that does something else in one of a hundred waits.
type pausing struct {
	peer
	waits *int
}

func (p pausing) next(t time.Duration, polls bool) (time.Duration, int) {
	if *p.waits++; *p.waits%100 == 0 {
		t += 1800 * time.Microsecond
	}
	return p.peer.next(t, polls)
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

// bunching sends n messages, 2 us apart, each period.
type bunching struct {
	period, wakeUp time.Duration
	n              int
	sent           *int
}

func (b bunching) next(t time.Duration, polls bool) (time.Duration, int) {
	if *b.sent++; polls && *b.sent%b.n != 0 {
		return t + 2*time.Microsecond, 1
	}
	at := (t/b.period + 1) * b.period
	if polls {
		return at, 1
	}
	*b.sent = 0
	return at + b.wakeUp, b.n
}

// cycling pauses before each nth answer.
type cycling struct {
	answering
	pause time.Duration
	n     int
	waits int
	at    time.Duration
}

func (c *cycling) next(t time.Duration, polls bool) (at time.Duration, messages int) {
	if t >= c.at { // or it is asked again in a wait in which polling has ended
		c.waits++
	}
	if c.waits%c.n == 0 {
		t += c.pause
	}
	c.at, messages = c.answering.next(t, polls)
	return c.at, messages
}

// waitFor goes through so many waits from t on, of an owner or an engine, and returns when they are over. Of the last
// half it says which part polling has ended, and which part of the time was polled in vain, and which was polled.
func waitFor(p *policy, of *pace, from peer, t time.Duration, waits int, work time.Duration) (end time.Duration, ended, inVain, polled float64) {
	var since, vain, hit time.Duration
	hits := 0
	for i := range waits {
		if i == waits/2 {
			since, vain, hit, hits = t, 0, 0, 0
		}
		most, polls := p.mayPoll(of, t)
		at, messages := from.next(t, polls)
		switch {
		case polls && at-t <= most:
			hits++
			hit += at - t
			if of == &p.batches {
				p.hitBatch(at - t)
			} else {
				p.hit(at - t)
			}
		case polls:
			vain += most
			p.tokens -= int64(most)
			of.miss()
			at, messages = from.next(t+most, false)
		}
		p.arrived += messages
		t = at + work
	}
	took := float64(t - since)
	return t, float64(hits) / float64((waits+1)/2), float64(vain) / took, float64(vain+hit) / took
}

// turn is a time in which messages come from one peer.
type turn struct {
	from  peer
	polls bool          // whether that pays
	work  time.Duration // between two waits, 5 us more
}

// waitInTurns has an owner or an engine find out in each turn whether polling pays.
func waitInTurns(t *testing.T, p *policy, of *pace, turns []turn) {
	at := time.Second
	for _, turn := range turns {
		var ended, inVain float64
		at, ended, inVain, _ = waitFor(p, of, turn.from, at, 40_000, 5*time.Microsecond+turn.work)
		require.Less(t, inVain, 0.05, "%+v", turn.from)
		if turn.polls {
			require.Greater(t, ended, 0.95, "%+v", turn.from)
		} else {
			require.Less(t, ended, 0.1, "%+v", turn.from)
		}
	}
}

func TestPollingIsForWhatItGains(t *testing.T) {
	const us = time.Microsecond
	answersSooner := answering{60 * us, 100 * us}
	answersSlowly := answering{150 * us, 220 * us}
	answersAnyway := answering{60 * us, 70 * us}
	wakesLate := answering{60 * us, 450 * us}
	soon := answering{25 * us, 26 * us}
	often := pacing{50 * us, 20 * us}
	lateOften := pacing{50 * us, 120 * us} // who sleeps finds three at once
	seldom := pacing{150 * us, 40 * us}
	affordable := pacing{260 * us, 40 * us} // the allowance would pay for polls of the least length, for good
	rare := pacing{time.Millisecond, 40 * us}
	for name, turns := range map[string][]turn{
		"who answers sooner":             {{answersSooner, true, 0}},
		"who answers slowly, and sooner": {{answersSlowly, true, 0}},
		"who answers no sooner":          {{answersAnyway, false, 0}},
		"who would be woken very late":   {{wakesLate, true, 0}},
		"who answers at once":            {{soon, true, 0}},
		"messages at a pace":             {{often, false, 0}},
		"who works between waits":        {{often, false, 0}, {answersSooner, true, 350 * us}},
		"who pauses, and answers sooner": {{pausing{answersSooner, new(int)}, true, 0}},
		"who pauses":                     {{pausing{answersAnyway, new(int)}, false, 0}},
		"several at once":                {{lateOften, false, 0}},
		"seldom":                         {{seldom, false, 0}},
		"affordable":                     {{affordable, false, 0}, {answersSooner, true, 0}, {affordable, false, 0}},
		"rarely":                         {{rare, false, 0}},
		"in turn":                        {{often, false, 0}, {answersSooner, true, 0}, {seldom, false, 0}, {answersSlowly, true, 0}, {often, false, 0}, {soon, true, 0}, {lateOften, false, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := new(policy)
			p.init(&Config{Profile: fallback.Balanced})
			waitInTurns(t, p, &p.pace, turns)
		})
	}
}

// Where waits take turns the one that is looked at must not always be the same.
func TestTurnsOfWaitsDoNotHideThatPollingPays(t *testing.T) {
	const us = time.Microsecond
	for _, n := range []int{2, 3, 4, 8} {
		for first := range n {
			p := new(policy)
			p.init(&Config{Profile: fallback.Balanced})
			at, _, _, _ := waitFor(p, &p.pace, pacing{time.Millisecond, 40 * us}, time.Second, 4000+first, 5*us)
			from := &cycling{answering: answering{25 * us, 60 * us}, pause: 900 * us, n: n}
			_, ended, _, _ := waitFor(p, &p.pace, from, at, 4000, 5*us)
			require.Greater(t, ended, 0.9*float64(n-1)/float64(n), "%d waits, the first %d", n, first)
		}
	}
}

// An engine waits for several at once, and whoever answers it may have to be woken for that.
func TestAnEnginePollsForWhatItGains(t *testing.T) {
	const us = time.Microsecond
	sleeps := several{answering{70 * us, 140 * us}, 5} // who answers, and each wake-up takes 70 us
	awake := several{answering{5 * us, 90 * us}, 5}
	anyway := several{answering{70 * us, 75 * us}, 5}
	often := pacing{50 * us, 20 * us}
	bunches := several{pacing{150 * us, 40 * us}, 3}
	for name, turns := range map[string][]turn{
		"who sleeps, and then polls, too": {{sleeps, true, 0}, {awake, true, 0}},
		"who answers no sooner":           {{anyway, false, 0}},
		"messages at a pace":              {{often, false, 0}},
		"bunches at a pace":               {{bunches, false, 0}},
		"who sleeps, after a pace":        {{often, false, 0}, {bunches, false, 0}, {sleeps, true, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := new(policy)
			p.init(&Config{Profile: fallback.Balanced})
			waitInTurns(t, p, &p.batches, turns)
		})
	}
}

func TestBunchesDoNotPayForTheTimeBetweenThem(t *testing.T) {
	const us = time.Microsecond
	p := new(policy)
	p.init(&Config{Profile: fallback.Balanced})
	from := bunching{150 * us, 40 * us, 8, new(int)}
	_, _, _, polled := waitFor(p, &p.batches, from, time.Second, 40_000, us)
	require.Less(t, polled, 0.03)
}
