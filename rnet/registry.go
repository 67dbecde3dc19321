package rnet

import (
	"cmp"
	"slices"
	"sync"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// What lives in this process, for statistics. As long as there is a session or a
// listener, other processes of the user can ask for them: see snapshot.go.
var (
	liveSessions  sessionSet
	liveListeners liveSet[*Listener]
)

// liveSet holds what lives of one kind, and numbers it: the first of the process
// is 1.
type liveSet[T comparable] struct {
	mu      sync.Mutex
	numbers map[T]uint64 // guarded by mu
	last    uint64       // guarded by mu; number of the youngest
}

// add adds one. If number is not nil it is set before list returns that one.
func (ls *liveSet[T]) add(one T, number *uint64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.numbers == nil {
		ls.numbers = make(map[T]uint64)
	}
	ls.last++
	if number != nil {
		*number = ls.last
	}
	ls.numbers[one] = ls.last
}

// remove takes one out, and reports whether it was there.
func (ls *liveSet[T]) remove(one T) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	_, was := ls.numbers[one]
	delete(ls.numbers, one)
	return was
}

// list returns those that live, the oldest first.
func (ls *liveSet[T]) list() []T {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.listLocked()
}

func (ls *liveSet[T]) listLocked() []T {
	list := make([]T, 0, len(ls.numbers))
	for one := range ls.numbers {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(ls.numbers[a], ls.numbers[b]) })
	return list
}

type sessionSet struct {
	liveSet[*session]
	ended deviceSums // what those that have ended came to; guarded by mu
}

func (ss *sessionSet) add(s *session) { ss.liveSet.add(s, &s.number) }

// remove takes out a session that counts no more. Its device is open still.
func (ss *sessionSet) remove(s *session) {
	st := s.readStats()
	rnrs, counted := s.dev.ctx.RNRs()
	ss.mu.Lock()
	delete(ss.numbers, s)
	if ss.ended == nil {
		ss.ended = make(deviceSums)
	}
	sum := ss.ended.at(s)
	sum.SessionsOpened++
	sum.Counters.add(&st.Counters)
	sum.RNRs, sum.RNRsCounted = max(sum.RNRs, rnrs), counted
	ss.mu.Unlock()
	if s.attached {
		attachable.release()
	}
}

// read returns the sessions that live, the oldest first, and the sums of all
// others at the same moment: what is counted in neither or in both would make
// a sum of both go back.
func (ss *sessionSet) read() ([]*session, deviceSums) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.listLocked(), ss.ended.clone()
}

// deviceSums are what sessions came to, by the transport and device that they
// ran over.
type deviceSums map[deviceSum]*DeviceStats

type deviceSum struct {
	transport fallback.Transport
	device    string
}

func (sums deviceSums) clone() deviceSums {
	c := make(deviceSums, len(sums))
	for key, st := range sums {
		one := *st
		c[key] = &one
	}
	return c
}

func (sums deviceSums) at(s *session) *DeviceStats {
	key := deviceSum{s.transport, s.device}
	if sums[key] == nil {
		sums[key] = &DeviceStats{Transport: Transport(s.transport.String()), Device: s.device}
	}
	return sums[key]
}

// addLive adds a session that lives.
func (d *DeviceStats) addLive(s *SessionStats) {
	d.Sessions++
	d.SessionsOpened++
	d.Streams += s.Streams
	d.Counters.add(&s.Counters)
}

// list returns the sums in order, with what the devices that are open count.
func (sums deviceSums) list() []DeviceStats {
	list := make([]DeviceStats, 0, len(sums))
	for _, st := range sums {
		if n, counted, open := openRNRs(st.Device); open {
			st.RNRs, st.RNRsCounted = n, counted
		}
		list = append(list, *st)
	}
	slices.SortFunc(list, func(a, b DeviceStats) int {
		return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Device, b.Device))
	})
	return list
}
