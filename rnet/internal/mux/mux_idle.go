package mux

import (
	"errors"
	"net"
	"syscall"
	"time"
)

var ErrIdle = errors.New("rnet: session is idle")

// Refused tells the reason for which no stream can be opened here, nil if one
// can.
func (m *Mux) Refused() error {
	if m.failed.Load() || m.goingAway.Load() {
		return net.ErrClosed
	}
	return nil
}

// Open makes the zero Stream st one to the peer. The error is net.ErrClosed if the mux
// is ending. With ErrNoSlot it may be called again for another Stream, see AwaitSlot.
func (m *Mux) Open(st *Stream) error {
	if m.host == nil || m.host.HasArrival() {
		m.pollLock.Look() // a GO_AWAY, perhaps
	}
	if err := m.Refused(); err != nil {
		return err
	}
	st.init(m)
	if err := m.streams.add(st); err != nil {
		return err
	}
	if m.Refused() != nil || !st.sayOpen() { // fail may not have seen it
		st.abort(syscall.ECONNRESET)
		if st.detach() {
			m.Left()
		}
		return net.ErrClosed
	}
	return nil
}

// Retire lets the session end with its last stream; the peer is told to open no
// more.
func (m *Mux) Retire() {
	m.goingAway.Store(true)
	m.draining.Store(false)
	m.out.say(sayAway)
	if m.streams.len() == 0 {
		m.Left()
	}
}

// Drain is Retire for a listener that still takes what the peer has opened: the session does
// not end before the peer has said that it opens no more, after which User.Leaving is called,
// or Retire is called.
func (m *Mux) Drain() {
	m.draining.Store(true)
	m.goingAway.Store(true)
	m.out.say(sayAway)
}

// PeerLeaves notes that the peer takes no more streams or, on the listening side, opens
// none. The dialing side says that in turn, after the last OPEN. Only the first time counts: a peer
// that goes on saying it neither costs more nor keeps a session that nobody uses.
func (m *Mux) PeerLeaves() {
	known := m.goingAway.Swap(true)
	if drained := m.draining.Swap(false); known && !drained {
		return
	}
	if m.cfg.Dialed {
		m.out.say(sayLast)
		m.streams.wakeOpeners()
	}
	m.user.Leaving()
	if m.streams.len() == 0 {
		m.Left()
	}
}

// IdleTime is how long a session without streams lives on: long enough for a
// program that opens one connection after the other.
const IdleTime = 500 * time.Millisecond

// Left is called when the last stream has gone, without the send lock.
func (m *Mux) Left() {
	if m.left() {
		m.expire()
	}
}

// left does what there is to do when the last stream has gone, and reports whether the session is to
// end at once.
func (m *Mux) left() bool {
	switch {
	case !m.cfg.Dialed && (!m.goingAway.Load() || m.draining.Load()):
	case m.cfg.Dialed && !m.cfg.Alone:
		m.ExpireAfter(IdleTime)
	case m.link.OnWire():
		m.ExpireAfter(flushCheck)
	default:
		return true
	}
	return false
}

// flushCheck is how often a session that is to end looks whether the network
// has delivered what it sent.
const flushCheck = time.Millisecond

// ExpireAfter closes the session after d, if it has no stream then.
func (m *Mux) ExpireAfter(d time.Duration) {
	m.flushChecks.Store(0)
	m.idle.setAfter(d, (*expiry)(m))
}

// expiry is a mux as its timer sees it.
type expiry Mux

func (m *expiry) wake() { (*Mux)(m).expire() }

// expire closes the session if it has had no stream since Left. A stream leaves the table before its end is
// sent: with the send lock held that has been done too.
func (m *Mux) expire() {
	m.lookForSent()
	m.out.mu.Lock()
	late := m.undelivered() && m.flushChecks.Add(1) < int32(FlushTime/flushCheck)
	empty := !late && m.streams.shutIfEmpty()
	m.out.mu.Unlock()
	switch {
	case late:
		m.idle.setAfter(flushCheck, (*expiry)(m))
	case empty:
		m.Fail(ErrIdle)
	}
}

// underWay reports whether the end of a stream may not have reached the peer
// yet. A session on the wire must not end before.
func (m *Mux) underWay() bool {
	m.lookForSent()
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	return m.undelivered()
}

// lookForSent takes in what the network has delivered.
func (m *Mux) lookForSent() {
	if m.link.OnWire() && !m.failed.Load() {
		m.pollLock.Look()
	}
}

// undelivered is underWay with the send lock held.
func (m *Mux) undelivered() bool {
	return m.link.OnWire() && !m.failed.Load() && !m.link.Stopped() && !m.link.Reached(m.out.control.lastFin)
}
