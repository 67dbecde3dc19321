package mux

import (
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// polled is a mux as its poll lock sees it.
type polled Mux

func (m *polled) Poll() int    { return (*Mux)(m).poll() }
func (m *polled) Failed() bool { return m.failed.Load() }
func (m *polled) Disarm()      { m.link.Disarm() }

func (m *polled) Arm() error {
	if err := m.link.Arm(); err != nil {
		(*Mux)(m).Fail(err)
		return err
	}
	return nil
}

// engine is the session's goroutine: it polls when nobody else does and
// something arrives, and it ends the session.
func (m *Mux) engine() {
	m.pollLock.Run(&wait.Engine{Period: link.KeepAlivePeriod, Tick: m.keepAlive, LoopEvent: m.onLoopEvent})
	if p := m.cfg.Poller; p != nil {
		p.warm(m)
		<-m.loop.handed // ended by the loop's next iteration, or its end
	}
	m.pollLock.Close()
	m.drain()
	m.shutdown()
}

// lookBeforeWrite takes in what has arrived: the peer may have closed, which ends Writes.
// Where the peer is on this host a few loads say that nothing has; elsewhere it looks only
// if nobody else would soon.
func (m *Mux) lookBeforeWrite() {
	look := false
	if m.host != nil {
		look = m.host.HasArrival()
	} else {
		look = m.pollLock.Unattended()
	}
	if look {
		m.pollLock.Look()
	}
}

// lookAnyway takes in what has arrived, and settles what the session window gets back. If another
// goroutine has the poll lock it may be about to be woken by what has arrived, have polled that and not
// delivered it yet, or sleep.
func (m *Mux) lookAnyway() {
	if !m.pollLock.Look() && !m.onLoop() {
		m.pollLock.LookSoon(lookTime)
	}
}

// lookTime bounds the wait for an owner of the poll lock that is kept from going on.
const lookTime = 20 * time.Millisecond

// onLoopEvent tells the event loop that serves the session, if one does, of an
// event. The engine rests then if the loop wants to wait at the channel itself.
func (m *Mux) onLoopEvent() (told, rest bool) {
	if !m.onLoop() {
		return false, false
	}
	rest = m.loop.engine.CompareAndSwap(engineLeaves, engineRests) // before it looks whether the session is cold: see cool
	m.cfg.Poller.warm(m)
	return true, rest
}

// keepAlive is called by the engine every link.KeepAlivePeriod.
func (m *Mux) keepAlive() {
	if m.onLoop() && !m.loop.cold.Load() {
		m.link.Tidy()
		return // something comes, or may have and a handler keeps the loop from it
	}
	wantsFrame, err := m.link.KeepAlive()
	if err != nil {
		m.Fail(err)
		return
	}
	if wantsFrame && (m.link.OnWire() || m.streams.len() > 0) {
		m.out.say(sayPing)
	}
}

// drain polls until the QP has flushed: everything that arrived before the
// failure is delivered first. The caller owns the poll lock, for good.
func (m *Mux) drain() {
	for m.poll() > 0 {
	}
}
