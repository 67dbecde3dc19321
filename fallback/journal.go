package fallback

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Decision is what became of one dial.
type Decision struct {
	Addr      string
	Transport Transport     // what the connection got; the one wanted if none did
	Device    string        // that it goes over, with the port if it has several; empty if it is none
	Reason    Reason        // why not something faster
	Err       error         // what the faster one, or the dial, failed with
	Failed    bool          // no connection came of it: Err is the dial's
	At        time.Time     // when it was decided
	Took      time.Duration // from the call of Dial until then

	// Repeats counts further dials right after it that went the same way. At,
	// Took and Err are those of the last of them that said when it was.
	Repeats int
}

const (
	// JournalDepth is how many decisions are kept for each address.
	JournalDepth = 8
	// JournalAddrs is for how many addresses decisions are kept, roughly; those
	// dialed longest ago are dropped first.
	JournalAddrs = 1024

	journalShards = 16
)

// Journal keeps the last decisions of each address and counts all of them. A
// dial that goes the same way as the one before it, which is nearly all of
// them, costs two counters and a lookup and allocates nothing. The zero Journal
// is ready to use.
type Journal struct {
	counts [transportCount][reasonCount]atomic.Uint64
	shards [journalShards]journalShard
}

type journalShard struct {
	mu    sync.Mutex
	addrs map[string]*history // guarded by mu, and so are the histories
	clock uint64              // counts decisions; guarded by mu
	_     [40]byte            // one cache line per shard
}

// history is a circular list of the decisions of one address.
type history struct {
	last  []Decision // grows to JournalDepth: most addresses are always decided in one way
	count int        // decisions ever, repeats not counted
	used  uint64     // the shard's clock at the last decision
}

var journalSeed = maphash.MakeSeed()

func (j *Journal) shard(addr string) *journalShard {
	return &j.shards[maphash.String(journalSeed, addr)%journalShards]
}

// Record notes a decision. d.Repeats is ignored. A dial that is too short to ask
// for the time leaves At zero.
func (j *Journal) Record(d Decision) {
	if d.Transport >= transportCount {
		d.Transport = Auto
	}
	if d.Reason >= reasonCount {
		d.Reason = Other
	}
	j.counts[d.Transport][d.Reason].Add(1)

	s := j.shard(d.Addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.addrs[d.Addr]
	if h == nil {
		h = s.add(d.Addr)
	}
	s.clock++
	h.used = s.clock
	if h.count > 0 {
		last := h.newest()
		if last.Transport == d.Transport && last.Device == d.Device && last.Reason == d.Reason && last.Failed == d.Failed {
			last.repeat(&d)
			return
		}
	}
	d.Repeats = 0
	h.count++
	if len(h.last) < JournalDepth {
		h.last = append(h.last, d)
	} else {
		*h.newest() = d
	}
}

// repeat adds another decision that went the same way.
func (d *Decision) repeat(again *Decision) {
	d.Repeats++
	if !again.At.IsZero() {
		d.Err, d.At, d.Took = again.Err, again.At, again.Took
	}
}

// Last returns the last decisions of addr, newest first, at most JournalDepth
// of them. The slice belongs to the caller.
func (j *Journal) Last(addr string) []Decision {
	s := j.shard(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.addrs[addr]
	if h == nil {
		return nil
	}
	list := make([]Decision, len(h.last))
	for i := range list {
		list[i] = h.last[(h.count-1-i)%JournalDepth]
	}
	return list
}

// Count is how often a transport was taken for a reason.
type Count struct {
	Transport Transport
	Reason    Reason
	N         uint64
}

// Counts returns how often each transport was taken for each reason, those that
// never happened left out.
func (j *Journal) Counts() []Count {
	var list []Count
	for t := range j.counts {
		for r := range j.counts[t] {
			if n := j.counts[t][r].Load(); n > 0 {
				list = append(list, Count{Transport(t), Reason(r), n})
			}
		}
	}
	return list
}

// newest returns the place of the decision made last. The history is not empty.
func (h *history) newest() *Decision { return &h.last[(h.count-1)%JournalDepth] }

// add makes an empty history for addr, in the place of another one if there are
// too many. The caller holds mu.
func (s *journalShard) add(addr string) *history {
	if s.addrs == nil {
		s.addrs = make(map[string]*history)
	}
	h := &history{}
	if len(s.addrs) >= JournalAddrs/journalShards {
		h = s.evict()
	}
	s.addrs[addr] = h
	return h
}

// evict drops the history whose last decision is oldest, of a few that the
// map's random order gives, and returns it emptied. The caller holds mu.
func (s *journalShard) evict() *history {
	const sample = 8
	var victim string
	var oldest *history
	seen := 0
	for addr, h := range s.addrs {
		if oldest == nil || h.used < oldest.used {
			victim, oldest = addr, h
		}
		if seen++; seen == sample {
			break
		}
	}
	delete(s.addrs, victim)
	*oldest = history{}
	return oldest
}
