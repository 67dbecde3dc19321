package wait

import "time"

// pace is what is known of when the next message arrives after a wait that polled, and
// after one that slept. Where the peer waits for us, as in a loop of requests and
// answers, it arrives sooner if we were awake for this one. Where messages have a pace of
// their own it does not, and polling for the next one takes CPU time and gives nothing.
type pace struct {
	limit   time.Duration // most polling of one wait
	cheap   time.Duration // a shorter wait costs less by polling than by a wake-up, whatever it gains
	begun   time.Duration // when the last wait began; 0 if that is not known
	polls   bool          // whether that one was to poll, for as long as it may
	arrived int           // messages before it
	polled  interval
	slept   interval
	gained  uint32        // hits that nothing but what polling gains has paid for, since waits slept for comparison
	trials  uint32        // waits that are to sleep for comparison
	bound   time.Duration // how long to poll, but for one wait in fullEvery
	patient bool          // polls that end no wait are never left out
	futile  uint32        // so many in a row, since bound is the least
	full    uint32        // counts the waits since one had the limit
}

// interval is the mean time from one message to the next, over the last waits.
type interval struct {
	time     int64 // ns, of which each wait forgets 1/32
	messages int64 // the same, 1024 for each
}

// add leaves most of a pause out, in which somebody had other things to do: one in a hundred would be
// most of the mean.
func (i *interval) add(t time.Duration, messages int) {
	if mean := i.mean(); mean != 0 {
		t = min(t, 4*mean*time.Duration(max(messages, 1)))
	}
	i.time += int64(t) - i.time/32
	i.messages += int64(messages)<<10 - i.messages/32
}

// mean is 0 as long as little is known.
func (i *interval) mean() time.Duration {
	if i.messages < 4<<10 {
		return 0
	}
	return time.Duration(i.time << 10 / i.messages)
}

const (
	// gainPart: polling is worth its CPU time if all messages of a wait together come sooner by a third of it.
	gainPart = 3
	// After so many hits that gained so many waits sleep for comparison, in a row: who wakes up late has
	// less to wait the next time.
	trialEvery = 1016
	trialWaits = 8
	fullEvery  = 17 // prime, lest waits that take turns have the same one poll for as long each time
	// After maxFutile only one wait in futileEvery polls, for as long as it may: polls that end no wait keep others from
	// the CPU, also where the allowance would pay for them. An engine is patient: what it waits for comes in bunches.
	maxFutile   = 32
	futileEvery = 61 // prime, too
)

func (p *pace) init(limit, cheap time.Duration) { p.limit, p.cheap, p.bound = limit, cheap, limit }

// begin begins a wait, which sleeps unless polls is set. What took much longer than anybody
// polls is left out: it says nothing of the pace.
func (p *pace) begin(t time.Duration, arrived int) {
	if took := t - p.begun; p.begun != 0 && took < 10*p.limit {
		if p.polls {
			p.polled.add(took, arrived-p.arrived)
		} else {
			p.slept.add(took, arrived-p.arrived)
		}
	}
	p.begun, p.polls, p.arrived = t, false, arrived
}

// forget is for a wait for which sleeping was the only choice.
func (p *pace) forget() { p.begun = 0 }

// most is for how long to poll: less if the waits are longer than that, 0 if they have been for long.
func (p *pace) most() time.Duration {
	every, most := uint32(fullEvery), p.bound
	if p.futile >= maxFutile && !p.patient {
		every, most = futileEvery, 0
	}
	if p.full++; p.full >= every {
		p.full = 0
		return p.limit
	}
	return most
}

// hit is called when polling has ended a wait.
func (p *pace) hit() { p.bound, p.futile = p.limit, 0 }

// miss is called when polling has not ended a wait.
func (p *pace) miss() {
	least := min(p.cheap, p.limit)
	if p.bound == least {
		p.futile++
	}
	p.bound = max(p.bound/2, least)
}

// pays reports whether to poll for so long was worth its CPU time.
func (p *pace) pays(took time.Duration) bool {
	if took <= p.cheap {
		return true
	}
	polled := p.polled.mean()
	gain := int64(p.slept.mean()-polled) * max(p.polled.messages/32, 1<<10) >> 10
	if polled == 0 || gain < int64(took/gainPart) {
		return false
	}
	if p.gained++; p.gained == trialEvery {
		p.gained, p.trials = 0, trialWaits
	}
	return true
}

// compares reports whether to sleep in this wait to see what that would be like: where polling
// is worth it for nothing else but what it gains.
func (p *pace) compares() bool {
	if p.trials == 0 {
		return false
	}
	p.trials--
	return true
}
