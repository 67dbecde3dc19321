package rgnet

import (
	"runtime"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// spinner decides how long a loop without work goes on polling. As with rnet's
// sessions, spins that bring nothing are soon left out but for a few, and one
// ends early when it keeps the peers from their CPU, which the loop leaves now and then.
type spinner struct {
	limit  time.Duration
	futile int // spins in a row that brought nothing
	left   int // spins left out since the last one made

	running bool
	n       int
	asked   bool // whether we looked on which CPUs the peers run
	now     time.Time
	check   time.Time
	end     time.Time
}

const (
	maxFutile     = 4  // after so many futile spins in a row
	spinEvery     = 16 // one in so many is made
	spinYield     = 16 // polls between two looks at the clock
	placementTime = 3 * time.Microsecond
)

// hit says that there was work.
func (s *spinner) hit(p *mux.Poller) {
	if s.running {
		s.running, s.futile = false, 0
		p.Gained()
	}
}

// on reports whether to poll once more, and what time it was lately.
func (s *spinner) on(p *mux.Poller) (now time.Time, spin bool) {
	if !s.running && !s.start() {
		return s.now, false
	}
	if s.n++; s.n%spinYield != 0 {
		return s.now, true
	}
	runtime.Gosched() // what else there is to do
	s.now = time.Now()
	if s.now.Before(s.end) {
		if s.asked || s.now.Before(s.check) {
			return s.now, true
		}
		if s.asked = true; p.PeersGoOn() {
			return s.now, true
		}
	}
	s.running = false
	s.futile++
	return s.now, false
}

func (s *spinner) start() bool {
	if s.limit == 0 {
		return false
	}
	if s.futile >= maxFutile {
		if s.left++; s.left < spinEvery {
			return false
		}
		s.left = 0
	}
	s.running, s.asked, s.n = true, false, 0
	s.now = time.Now()
	s.check, s.end = s.now.Add(placementTime), s.now.Add(s.limit)
	return true
}
