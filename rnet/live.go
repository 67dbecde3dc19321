package rnet

import (
	"cmp"
	"slices"
	"sync"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// liveSessions are the sessions of this process, and liveListeners its
// listeners, for statistics. As long as there is one, other processes of the
// user can ask for them: see attach.go.
var (
	liveSessions  sessionSet
	liveListeners listenerSet
)

type sessionSet struct {
	mu    sync.Mutex
	set   map[*session]struct{}
	last  uint64     // number of the youngest
	ended deviceSums // what those that have ended came to
}

func (ss *sessionSet) add(s *session) {
	ss.mu.Lock()
	if ss.set == nil {
		ss.set = make(map[*session]struct{})
	}
	ss.last++
	s.number = ss.last
	ss.set[s] = struct{}{}
	ss.mu.Unlock()
	attachable.hold()
}

// remove takes out a session that counts no more. Its device is open still.
func (ss *sessionSet) remove(s *session) {
	st := s.readStats()
	rnrs, counted := s.dev.ctx.RNRs()
	ss.mu.Lock()
	delete(ss.set, s)
	if ss.ended == nil {
		ss.ended = make(deviceSums)
	}
	sum := ss.ended.at(s)
	sum.SessionsOpened++
	sum.Counters.add(&st.Counters)
	sum.RNRs, sum.RNRsCounted = max(sum.RNRs, rnrs), counted
	ss.mu.Unlock()
	attachable.release()
}

// read returns the sessions that live, the oldest first, and the sums of all
// others at the same moment: what is counted in neither or in both would make
// a sum of both go back.
func (ss *sessionSet) read() ([]*session, deviceSums) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return sorted(ss.set, func(a, b *session) int { return cmp.Compare(a.number, b.number) }), ss.ended.clone()
}

func (ss *sessionSet) list() []*session {
	live, _ := ss.read()
	return live
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

type listenerSet struct {
	mu   sync.Mutex
	set  map[*Listener]struct{}
	last uint64 // number of the youngest
}

func (ls *listenerSet) add(l *Listener) {
	ls.mu.Lock()
	if ls.set == nil {
		ls.set = make(map[*Listener]struct{})
	}
	ls.last++
	l.number = ls.last
	ls.set[l] = struct{}{}
	ls.mu.Unlock()
	attachable.hold()
}

func (ls *listenerSet) remove(l *Listener) {
	ls.mu.Lock()
	delete(ls.set, l)
	ls.mu.Unlock()
	attachable.release()
}

func (ls *listenerSet) list() []*Listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return sorted(ls.set, func(a, b *Listener) int { return cmp.Compare(a.number, b.number) })
}

// livePollers are the event loops of this process.
var livePollers pollerSet

type pollerSet struct {
	mu   sync.Mutex
	set  map[*poller]struct{}
	last uint64 // number of the youngest
}

func (ps *pollerSet) add(p *poller) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.set == nil {
		ps.set = make(map[*poller]struct{})
	}
	ps.last++
	p.number = ps.last
	ps.set[p] = struct{}{}
}

func (ps *pollerSet) remove(p *poller) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.set, p)
}

func (ps *pollerSet) list() []*poller {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return sorted(ps.set, func(a, b *poller) int { return cmp.Compare(a.number, b.number) })
}

func sorted[T comparable](set map[T]struct{}, compare func(a, b T) int) []T {
	list := make([]T, 0, len(set))
	for one := range set {
		list = append(list, one)
	}
	slices.SortFunc(list, compare)
	return list
}
