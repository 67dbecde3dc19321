package fallback

import (
	"sync"
	"sync/atomic"
	"time"
)

// Memory remembers which addresses could not be reached over anything but TCP,
// so that the next dials do not pay for finding out again. How long depends on
// the reason; failures in a row are remembered longer each time. The zero
// Memory is not usable, see NewMemory.
type Memory struct {
	now   func() time.Time
	limit int
	size  atomic.Int64 // entries, so that the usual Recall of an empty memory is one load

	mu      sync.Mutex
	entries map[string]memoryEntry // guarded by mu
}

type memoryEntry struct {
	reason Reason
	term   time.Duration // how long this failure is remembered
	found  time.Time
	until  time.Time
}

// MemoryLimit is the number of addresses that a Memory made with limit 0
// holds.
const MemoryLimit = 1024

// NewMemory returns an empty memory for at most limit addresses (0 means
// MemoryLimit) that reads the time from now (nil means time.Now).
func NewMemory(limit int, now func() time.Time) *Memory {
	if limit <= 0 {
		limit = MemoryLimit
	}
	if now == nil {
		now = time.Now
	}
	return &Memory{now: now, limit: limit, entries: make(map[string]memoryEntry)}
}

// terms holds how long a first failure is remembered and how long at most;
// zero means not at all. What lies with the caller, or with the moment, is not
// remembered: that the peer died, or that there were too many set-ups at once.
// What a person has to change is remembered longer, what costs a timeout to find
// out longest: HandshakeTimeout is here that of a network. (A listener of this host
// that is slow is no reason to remember anything; who dials does not call Remember.)
// That there is nothing but TCP is found out quickly, and may be different in a
// moment; it is remembered for that moment only, and only if it was found twice: a server that
// starts listens for streams before TCP connects to it, so a dial that found no streams and then
// TCP may have come in between, but not the next one.
var terms = [reasonCount]struct{ first, most time.Duration }{
	NotLocal:         {nothingTime, nothingTime},
	Directory:        {nothingTime, nothingTime},
	NoListener:       {nothingTime, nothingTime},
	NoDevice:         {nothingTime, nothingTime},
	PeerDenied:       {5 * time.Second, time.Minute},
	PeerRejected:     {100 * time.Millisecond, time.Second},
	HandshakeTimeout: {10 * time.Second, 5 * time.Minute},
	HandshakeGarbage: {10 * time.Second, 5 * time.Minute},
	VersionMismatch:  {30 * time.Second, 5 * time.Minute},
	NoDescriptors:    {time.Second, 10 * time.Second},
	NoMemory:         {time.Second, 10 * time.Second},
	Memlock:          {time.Second, time.Minute},
	PinLimit:         {time.Second, 10 * time.Second},
	MemfdForbidden:   {30 * time.Second, 5 * time.Minute},
	ShmUnusable:      {time.Second, time.Minute},
	Permission:       {5 * time.Second, time.Minute},
	Cgroup:           {time.Second, 30 * time.Second},
	Other:            {time.Second, 30 * time.Second},
}

// nothingTime is how long it is remembered that there is nothing but TCP.
const nothingTime = 100 * time.Millisecond

// Nothing reports whether the reason says that there is nothing but TCP.
func (r Reason) Nothing() bool {
	return r == NotLocal || r == Directory || r == NoListener || r == NoDevice
}

// Remember notes that addr failed for the given reason, and was reached over
// TCP. The term doubles with
// each failure for the same reason until Forget, as long as the last one is not
// longer past than it was remembered for. Reasons that are never remembered
// leave things as they are. begun is when the dial began: what was found at the
// same time was found once.
func (m *Memory) Remember(addr string, r Reason, begun time.Time) {
	if r >= reasonCount || terms[r].first == 0 {
		return
	}
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	old, known := m.entries[addr]
	term := terms[r].first
	until := now.Add(term)
	again := known && old.reason == r && now.Before(old.until.Add(old.term))
	switch {
	case again && begun.Before(old.found):
		return
	case again:
		term = min(2*old.term, terms[r].most)
		until = now.Add(term)
	case r.Nothing():
		until = now // the next time
	}
	if !known && len(m.entries) >= m.limit {
		m.evict()
	}
	m.entries[addr] = memoryEntry{reason: r, term: term, found: now, until: until}
	m.size.Store(int64(len(m.entries)))
}

// Recall returns why addr failed lately. False if it did not, or if that is so
// long ago that it should be tried again.
func (m *Memory) Recall(addr string) (Reason, bool) {
	if m.size.Load() == 0 {
		return None, false
	}
	m.mu.Lock()
	e, ok := m.entries[addr]
	m.mu.Unlock()
	if !ok || !m.now().Before(e.until) {
		return None, false
	}
	return e.reason, true
}

// Forget notes that addr was reached, or that it should be tried again in any
// case.
func (m *Memory) Forget(addr string) {
	if m.size.Load() == 0 {
		return
	}
	m.mu.Lock()
	delete(m.entries, addr)
	m.size.Store(int64(len(m.entries)))
	m.mu.Unlock()
}

// evict makes room for one entry: of a few that the map's random order gives,
// the one that ends first goes. The caller holds mu.
func (m *Memory) evict() {
	const sample = 8
	var victim string
	var until time.Time
	seen := 0
	for addr, e := range m.entries {
		if seen == 0 || e.until.Before(until) {
			victim, until = addr, e.until
		}
		if seen++; seen == sample {
			break
		}
	}
	delete(m.entries, victim)
}
