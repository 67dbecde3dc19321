package rnet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// poller has the sessions that one event loop serves.
//
// A session is hot, and polled, or cold: armed, and not looked at until
// something has warmed it. Lost wake-ups: the loop makes a session cold before
// it looks at it for the last time; who has work for it leaves the work before
// it looks whether the session is cold.
type poller struct {
	owner   loop.Owner
	profile fallback.Profile
	number  uint64 // among the event loops of the process

	turns, sleeps, dozes atomic.Uint64 // for statistics

	// Of the loop'm goroutine.
	hot []*mux

	woken  atomic.Bool         // warmed is not empty
	dozing atomic.Pointer[mux] // on whose channel the loop'm thread sleeps, or is about to

	mu     sync.Mutex
	warmed []*mux            // to become hot; guarded by mu
	all    map[*mux]struct{} // guarded by mu
	closed bool              // guarded by mu
}

// quietPolls is after how many polls that brought nothing a session is armed
// alone, although the loop has others to poll.
const quietPolls = 4096

func init() {
	loop.NewPoller = newPoller
	loop.Dial = dialOnLoop
	loop.Listen = listenOnLoops
	loop.ListenFirst = listenFirstOnLoops
	loop.Resolve = resolvePolicy
}

func newPoller(owner loop.Owner, config any) (loop.Poller, error) {
	set, err := config.(*ListenConfig).settings()
	if err != nil {
		return nil, err
	}
	p := &poller{owner: owner, profile: set.session.profile, all: make(map[*mux]struct{})}
	livePollers.add(p, &p.number)
	return p, nil
}

func dialOnLoop(ctx context.Context, dialer any, network, address string, p loop.Poller) (net.Conn, error) {
	return dialer.(*Dialer).dial(ctx, network, address, p.(*poller))
}

// resolvePolicy tells which peers a configuration allows.
func resolvePolicy(config any) (loop.Policy, error) {
	set, err := config.(*ListenConfig).settings()
	return loop.Policy{
		TCP:         set.transport == fallback.Auto || set.transport == fallback.TCP,
		Accelerated: set.transport != fallback.TCP,
		Log:         set.log,
	}, err
}

// add gives a session that has started to the loop.
func (p *poller) add(m *mux) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		m.handBack()
		m.Fail(fmt.Errorf("%w: the event loop has ended", errSessionIdle))
		return
	}
	p.all[m] = struct{}{}
	p.warmed = append(p.warmed, m)
	p.woken.Store(true)
	p.mu.Unlock()
	p.owner.Ring()
}

// wake makes a session hot that was cold. Any goroutine calls it.
func (p *poller) wake(m *mux) {
	p.mu.Lock()
	p.warmed = append(p.warmed, m)
	p.woken.Store(true)
	p.mu.Unlock()
	p.owner.Ring()
}

// takeWarmed makes the sessions hot that are to be.
func (p *poller) takeWarmed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range p.warmed {
		if _, ok := p.all[m]; ok {
			m.quiet = 0
			p.hot = append(p.hot, m)
		}
		p.warmed[i] = nil
	}
	p.warmed = p.warmed[:0]
	p.woken.Store(false)
}

// Poll polls each hot session once.
func (p *poller) Poll() int {
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
func (p *poller) visit(m *mux) (n int, keep bool) {
	if m.closing.Load() {
		p.finish(m)
		return 1, false
	}
	m.pollLock.Disarm()
	n = m.poll()
	if n > 0 || m.unblocks.Load() || len(m.events) > 0 {
		m.pollLock.Hit()
		m.dispatch()
		n++
		m.quiet = 0
	} else if m.quiet++; m.quiet > quietPolls {
		return p.cool(m)
	}
	return n, true
}

// cool arms a session and makes it cold, unless there is something.
func (p *poller) cool(m *mux) (n int, keep bool) {
	m.quiet = 0
	m.cold.Store(true)
	n = m.pollLock.Rearm()
	if n == 0 && !m.unblocks.Load() && !m.closing.Load() {
		m.pollLock.PollMisses.Add(1)
		return 0, false
	}
	m.dispatch()
	// If somebody else took it back it comes by takeWarmed.
	return n + 1, m.cold.CompareAndSwap(true, false)
}

// Arm makes all sessions cold.
func (p *poller) Arm() bool {
	idle := true
	for i := len(p.hot) - 1; i >= 0; i-- {
		m := p.hot[i]
		n, keep := p.cool(m)
		if n > 0 {
			idle = false
		}
		if !keep {
			p.hot = append(p.hot[:i], p.hot[i+1:]...)
		}
	}
	if !idle || p.woken.Load() {
		return false
	}
	p.sleeps.Add(1)
	return true
}

// Doze sleeps on the completion channel of the only session, which wakes a
// thread directly; the way through the engine and the loop'm bell wakes two. The
// engine, which waits beside it, can take an event away that comes before the
// thread sleeps: then the session is looked at when the time has come.
func (p *poller) Doze(until time.Time) bool {
	if len(p.hot) != 1 || p.Sessions() != 1 {
		return false
	}
	m := p.hot[0]
	if !m.threads || m.closing.Load() || !wait.EnterThread() {
		return false
	}
	defer wait.LeaveThread()
	p.dozing.Store(m)
	defer p.dozing.Store(nil)
	switch n := m.pollLock.Rearm(); {
	case m.closing.Load(): // visit sees it
	case n > 0:
		m.pollLock.Hit()
		m.dispatch()
	case !p.woken.Load() && !m.unblocks.Load() && !m.closing.Load():
		m.pollLock.PollMisses.Add(1)
		m.pollLock.ThreadWaits.Add(1)
		p.dozes.Add(1)
		// Ended by: an arrival (data, credit), Rouse (a task, a new session, an
		// unblocked stream), failure of the session, the end of the turn.
		m.link.Channel().WaitThread(until)
	}
	return true
}

// Rouse ends Doze.
func (p *poller) Rouse() {
	if m := p.dozing.Load(); m != nil {
		m.link.Channel().Wake()
	}
}

// finish ends the loop'm part in a session that fails.
func (p *poller) finish(m *mux) {
	p.mu.Lock()
	delete(p.all, m)
	p.mu.Unlock()
	m.finishLoop()
}

// Spin returns how long the loop may poll in vain.
func (p *poller) Spin() time.Duration {
	switch p.profile {
	case fallback.Latency:
		return wait.LatencySpin
	case fallback.Efficient:
		return 0
	}
	return wait.EngineSpin
}

// Near reports whether no peer of a hot session can go on while we poll, which
// is so if there is none.
func (p *poller) Near() bool {
	for _, m := range p.hot {
		if !wait.SameCPU(m.host) {
			return false
		}
	}
	return true
}

// Attach gives a stream that was dialed on this loop its sink.
func (p *poller) Attach(conn net.Conn, sink func(loop.Stream) loop.Sink) loop.Stream {
	c, ok := conn.(*Conn)
	if !ok || c.st.m.cfg.Poller != p || c.st.m.unlooped.Load() { // by the loop, as it failed perhaps
		return nil
	}
	return c.st.attach(sink)
}

// Turn counts a turn of the loop.
func (p *poller) Turn() { p.turns.Add(1) }

// Sessions returns how many sessions the poller has.
func (p *poller) Sessions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// Close hands all sessions back to their engines, and gives a network up to a
// second to deliver the ends of streams, as Conn.Close does.
func (p *poller) Close() {
	p.mu.Lock()
	p.closed = true
	left := p.all
	p.all, p.warmed, p.hot = nil, nil, nil
	p.mu.Unlock()
	livePollers.remove(p)
	for m := range left {
		m.handBack()
	}
	// The process may end now, and what is under way on a network with it.
	end := time.Now().Add(flushTime)
	for m := range left {
		for m.underWay() && time.Now().Before(end) {
			time.Sleep(flushCheck) // ended by the clock
		}
	}
}
