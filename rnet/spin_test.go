package rnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
)

func spinning(p fallback.Profile, wire bool) *session {
	s := new(session)
	s.spin.init(p, wire)
	return s
}

// lose makes spins that bring nothing, and returns how many starts were left
// out until the next that polls.
func lose(s *session) (leftOut int, probe spinRun) {
	for range maxFutile {
		r := s.spin.start(s)
		r.lost()
	}
	for {
		if r := s.spin.start(s); !r.stopped {
			return leftOut, r
		}
		leftOut++
	}
}

func TestSpinsThatBringNothingAreLeftOut(t *testing.T) {
	for name, test := range map[string]struct {
		wire  bool
		limit time.Duration
	}{
		"shared memory": {false, baseSpin},
		"wire":          {true, longSpin},
	} {
		t.Run(name, func(t *testing.T) {
			s := spinning(fallback.Balanced, test.wire)
			leftOut, probe := lose(s)
			require.Equal(t, probeEvery-1, leftOut)
			require.Equal(t, test.limit, probe.limit)
			probe.wonAfter(0)
			r := s.spin.start(s)
			require.False(t, r.stopped, "a spin that brought something is followed by others")
			require.Equal(t, baseSpin, r.limit)
		})
	}
}

func TestEfficientSpinsNeverAndLatencyAlways(t *testing.T) {
	s := spinning(fallback.Efficient, true)
	r := s.spin.start(s)
	require.True(t, r.stopped)
	s = spinning(fallback.Latency, true)
	for range 2 * maxFutile {
		r := s.spin.start(s)
		require.Equal(t, latencySpin, r.limit)
		r.lost()
	}
}

func TestALongerSpinIsKeptIfWaitsBecomeQuick(t *testing.T) {
	const wakeUp = 300 * time.Microsecond
	s := spinning(fallback.Balanced, true)
	_, probe := lose(s)
	probe.wonAfter(wakeUp)
	require.GreaterOrEqual(t, s.spin.limit, 2*wakeUp)
	for range (trialWindows - 1) * trialWaits { // the peer does not try yet
		r := s.spin.start(s)
		r.wonAfter(wakeUp)
	}
	for i := range 10 * trialWindows * trialWaits {
		took := wakeUp / 3
		if i%trialWaits == 0 {
			took = wakeUp // now and then one is slow
		}
		r := s.spin.start(s)
		r.wonAfter(took)
		require.GreaterOrEqual(t, s.spin.limit, 2*wakeUp)
	}
	_, probe = lose(s) // the peer has nothing more to say
	require.Equal(t, longSpin, probe.limit)
	require.Equal(t, baseSpin, s.spin.limit)
}

func TestALongerSpinIsGivenUpIfThePeerIsSlow(t *testing.T) {
	const think = 400 * time.Microsecond
	s := spinning(fallback.Balanced, true)
	leftOut, probe := lose(s)
	require.Equal(t, probeEvery-1, leftOut)
	for every := 2 * probeEvery; every <= 2*probeRarely; every *= 2 {
		probe.wonAfter(think)
		for range trialWindows * trialWaits {
			r := s.spin.start(s)
			r.wonAfter(think)
		}
		require.Equal(t, baseSpin, s.spin.limit)
		leftOut, probe = 0, s.spin.start(s)
		for ; probe.stopped; probe = s.spin.start(s) {
			leftOut++
		}
		require.Equal(t, min(every, probeRarely)-1, leftOut, "the next probe comes later")
	}
}
