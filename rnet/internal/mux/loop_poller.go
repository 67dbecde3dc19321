package mux

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// Poller polls the sessions that one event loop serves. Its methods are called from the
// loop's goroutine, but for Wake, Sessions, Stats and Parks.
//
// A session is hot, and polled, or cold: armed, and not looked at until
// something has warmed it. Lost wake-ups: the loop makes a session cold before
// it looks at it for the last time; who has work for it leaves the work before
// it looks whether the session is cold.
type Poller struct {
	owner   Owner
	profile fallback.Profile
	number  uint64 // among the event loops of the process

	iterations, sleeps, threadSleeps, parks atomic.Uint64 // for statistics

	// Of the loop's goroutine.
	hot       []*Mux
	past      wait.Sleeps
	placement wait.Placement

	woken    atomic.Bool         // warmed is not empty
	sleeping atomic.Pointer[Mux] // on whose channel the loop sleeps, or is about to

	mu     sync.Mutex
	warmed []*Mux            // to become hot; guarded by mu
	all    map[*Mux]struct{} // guarded by mu
	closed bool              // guarded by mu
}

// quietPolls is after how many polls that brought nothing a session is armed
// alone, although the loop has others to poll.
const quietPolls = 4096

// NewPoller makes the poller of an event loop.
func NewPoller(owner Owner, profile fallback.Profile) *Poller {
	p := &Poller{owner: owner, profile: profile, all: make(map[*Mux]struct{})}
	pollers.add(p)
	return p
}

// pollers are those that live.
var pollers livePollers

type livePollers struct {
	mu   sync.Mutex
	list []*Poller // the oldest first; guarded by mu
	last uint64    // number of the youngest that there ever was; guarded by mu
}

func (l *livePollers) add(p *Poller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	p.number = l.last
	l.list = append(l.list, p)
}

func (l *livePollers) remove(p *Poller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(one *Poller) bool { return one == p })
}

// Pollers returns the pollers of the process that live, the oldest first.
func Pollers() []*Poller {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	return slices.Clone(pollers.list)
}

// PollerStats are the statistics of a poller since it was made.
type PollerStats struct {
	Number      uint64 // 1 is the first of the process
	Sessions    int    // that it serves now
	Iterations  uint64 // counted by Iteration
	Sleeps      uint64 // times that nothing was to be polled
	ThreadWaits uint64
}

// Stats returns them.
func (p *Poller) Stats() PollerStats {
	return PollerStats{
		Number: p.number, Sessions: p.Sessions(),
		Iterations: p.iterations.Load(), Sleeps: p.sleeps.Load(), ThreadWaits: p.threadSleeps.Load(),
	}
}

// Parks returns how many times Park has waited.
func (p *Poller) Parks() uint64 { return p.parks.Load() }

// add gives a session that has started to the loop.
func (p *Poller) add(m *Mux) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		m.handBack()
		m.Fail(fmt.Errorf("%w: the event loop has ended", ErrIdle))
		return
	}
	p.all[m] = struct{}{}
	p.warmed = append(p.warmed, m)
	p.woken.Store(true)
	p.mu.Unlock()
	p.owner.Wake()
}

// warm makes a session hot if it is cold. Any goroutine calls it.
func (p *Poller) warm(m *Mux) {
	if m.loop.cold.Load() && m.loop.cold.CompareAndSwap(true, false) {
		p.mu.Lock()
		p.warmed = append(p.warmed, m)
		p.woken.Store(true)
		p.mu.Unlock()
		p.owner.Wake()
	}
}

// takeWarmed makes the sessions hot that are to be.
func (p *Poller) takeWarmed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range p.warmed {
		if _, ok := p.all[m]; ok {
			m.loop.quiet = 0
			p.hot = append(p.hot, m)
		}
		p.warmed[i] = nil
	}
	p.warmed = p.warmed[:0]
	p.woken.Store(false)
}

// Poll polls each hot session once.
func (p *Poller) Poll() int {
	if p.woken.Load() {
		p.takeWarmed()
	}
	total := 0
	for i := 0; i < len(p.hot); i++ {
		m := p.hot[i]
		n, keep := p.visit(m)
		total += n
		if !keep {
			last := len(p.hot) - 1
			p.hot[i], p.hot[last] = p.hot[last], nil
			p.hot = p.hot[:last]
			i--
		}
	}
	return total
}

// visit polls one session, and reports whether it stays hot.
func (p *Poller) visit(m *Mux) (n int, keep bool) {
	if m.closing.Load() {
		p.finish(m)
		return 1, false
	}
	m.pollLock.Disarm()
	n = m.poll()
	if n > 0 || m.loop.unblocks.Load() || len(m.loop.events) > 0 {
		m.pollLock.CountHit()
		m.dispatch()
		n++
		m.loop.quiet = 0
	} else if m.loop.quiet++; m.loop.quiet > quietPolls {
		return p.cool(m)
	}
	return n, true
}

// cool arms a session and makes it cold, unless there is something.
func (p *Poller) cool(m *Mux) (n int, keep bool) {
	m.loop.quiet = 0
	m.loop.cold.Store(true)
	if m.loop.engine.CompareAndSwap(engineRests, engineWaits) { // or it sees that the session is cold, after that
		m.pollLock.Rested()
		m.pollLock.CallEngine()
	}
	n = m.pollLock.Rearm()
	if n == 0 && !m.loop.unblocks.Load() && !m.closing.Load() {
		m.pollLock.PollMisses.Add(1)
		m.loop.fitEvents()
		return 0, false
	}
	m.dispatch()
	// If somebody else took it back it comes by takeWarmed.
	return n + 1, m.loop.cold.CompareAndSwap(true, false)
}

// Arm makes all sessions cold.
func (p *Poller) Arm() bool {
	idle := true
	for i := len(p.hot) - 1; i >= 0; i-- {
		m := p.hot[i]
		n, keep := p.cool(m)
		if n > 0 {
			idle = false
		}
		if !keep {
			p.hot = slices.Delete(p.hot, i, i+1)
		}
	}
	if !idle || p.woken.Load() {
		return false
	}
	p.sleeps.Add(1)
	return true
}

// Sleep sleeps on the completion channel of the only session, which wakes a
// thread directly; the way through the engine and the loop's socket wakes two. The
// engine, which waits beside it, can take an event away that comes before the
// thread sleeps: then the session is looked at when the time has come. It does not sleep if
// the loop has work, which is asked after Wake would end it. It returns false if the loop is
// to sleep elsewhere.
func (p *Poller) Sleep(until time.Time, work func() bool) bool {
	m := p.only()
	if m == nil || !m.threads || !p.past.EnterThread() {
		return false
	}
	defer wait.LeaveThread()
	if p.mayWait(m, work) {
		m.pollLock.ThreadWaits.Add(1)
		p.threadSleeps.Add(1)
		// Ended by: an arrival (data, credit), Wake (a task, a new session, an
		// unblocked stream), failure of the session, the end of the iteration.
		begin := time.Now()
		m.link.Channel().WaitThread(until)
		p.past.Add(time.Since(begin))
	}
	p.sleeping.Store(nil)
	return true
}

// Park is Sleep for sleeps that are too long for a thread: the goroutine parks at the completion channel, in the
// engine's place. It returns false where the engine is still there, which leaves after its next event.
func (p *Poller) Park(until time.Time, work func() bool) bool {
	m := p.only()
	if m == nil {
		return false
	}
	if m.loop.engine.Load() != engineRests {
		m.loop.engine.CompareAndSwap(engineWaits, engineLeaves)
		return false
	}
	if p.mayWait(m, work) {
		p.parks.Add(1)
		begin := time.Now()
		if m.link.Channel().Wait(until) == nil { // ended as in Sleep
			m.pollLock.Wakeups.Add(1)
		}
		p.past.Add(time.Since(begin))
	}
	p.sleeping.Store(nil)
	return true
}

// only returns the session that is the only one of the loop, nil if there are others, or it comes to its end.
func (p *Poller) only() *Mux {
	if len(p.hot) != 1 || p.Sessions() != 1 || p.hot[0].closing.Load() {
		return nil
	}
	return p.hot[0]
}

// mayWait arms the session, for a wait that Wake ends from here on, and reports whether there is nothing to do.
func (p *Poller) mayWait(m *Mux, work func() bool) bool {
	p.sleeping.Store(m)
	switch n := m.pollLock.Rearm(); {
	case m.closing.Load(): // visit sees it
	case n > 0:
		m.pollLock.CountHit()
		m.dispatch()
	case !work() && !p.woken.Load() && !m.loop.unblocks.Load() && !m.closing.Load():
		m.pollLock.PollMisses.Add(1)
		return true
	}
	return false
}

// Wake ends Sleep and Park.
func (p *Poller) Wake() {
	if m := p.sleeping.Load(); m != nil {
		m.link.Channel().Wake()
	}
}

// finish is what the loop does with a session that fails: what arrived before is delivered,
// and each stream is told.
func (p *Poller) finish(m *Mux) {
	p.mu.Lock()
	delete(p.all, m)
	p.mu.Unlock()
	for m.poll() > 0 {
		m.dispatch()
	}
	m.dispatch()
	for _, st := range m.streams.shutNow() {
		st.abort(syscall.ECONNRESET)
	}
	m.dispatch()
	m.handBack()
}

// Spin returns how long the loop may poll in vain.
func (p *Poller) Spin() time.Duration {
	switch p.profile {
	case fallback.Latency:
		return wait.LatencySpin
	case fallback.Efficient:
		return 0
	}
	return wait.LoopSpin
}

// PeersGoOn reports whether a peer of a hot session can go on while we poll. Where all of them
// are on our CPU, we leave it now and then.
func (p *Poller) PeersGoOn() bool {
	return len(p.hot) > 0 && (!p.peersOnOurCPU() || p.placement.Leave() && !p.peersOnOurCPU())
}

// Gained says that polling has brought something.
func (p *Poller) Gained() { p.placement.Settle() }

func (p *Poller) peersOnOurCPU() bool {
	for _, m := range p.hot {
		if !wait.SameCPU(m.host) {
			return false
		}
	}
	return true
}

// Attach gives a stream that was opened for this loop its sink, and tells the sink of
// what has come. It returns false if the stream is not of this poller, or its session has
// come to an end.
func (p *Poller) Attach(st *Stream, sink func(*LoopStream) Sink) bool {
	if st.m.cfg.Poller != p || st.m.loop.ended.Load() { // by the loop, as it failed perhaps
		return false
	}
	st.attach(sink)
	return true
}

// Iteration counts an iteration of the loop.
func (p *Poller) Iteration() { p.iterations.Add(1) }

// Slept says how long the loop has slept elsewhere than in Sleep.
func (p *Poller) Slept(took time.Duration) { p.past.Add(took) }

// Sessions returns how many sessions the Poller has.
func (p *Poller) Sessions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// Close hands all sessions back to their engines, and gives a network up to a
// second to deliver the ends of streams, and peers that long to make room for them, as Conn.Close does.
func (p *Poller) Close() {
	p.mu.Lock()
	p.closed = true
	left := p.all
	p.all, p.warmed, p.hot = nil, nil, nil
	p.mu.Unlock()
	pollers.remove(p)
	for m := range left {
		m.handBack()
	}
	// The process may end now, and what has no room or is under way on a network with it.
	end := time.Now().Add(FlushTime)
	for m := range left {
		for (m.out.unsaid() || m.underWay()) && time.Now().Before(end) {
			time.Sleep(flushCheck)
		}
	}
}
