package rnet

import (
	"errors"
	"net"
	"syscall"
	"time"
)

var errSessionIdle = errors.New("rnet: session is idle")

// refused tells the reason for which no stream can be opened here, nil if one
// can.
func (s *session) refused() error {
	if s.failed.Load() || s.goingAway.Load() {
		return net.ErrClosed
	}
	return nil
}

// open makes a stream to the peer. The error is net.ErrClosed if the session
// is ending; the caller makes another session then. With errNoSlot it may be
// called again, see openWhenTold.
func (s *session) open() (*Conn, error) {
	s.pollLock.Look()
	if err := s.refused(); err != nil {
		return nil, err
	}
	c := newConn(s)
	if err := s.streams.add(c); err != nil {
		return nil, err
	}
	if s.refused() != nil { // fail may not have seen c
		c.abort(syscall.ECONNRESET)
		if c.detach() {
			s.left()
		}
		return nil, net.ErrClosed
	}
	s.control(c, ctlOpen)
	return c, nil
}

// peerLeaves notes that the peer takes no more streams.
func (s *session) peerLeaves() {
	s.goingAway.Store(true)
	if s.onEnd != nil {
		s.onEnd(s)
	}
	if s.streams.len() == 0 {
		s.left()
	}
}

// idleTime is how long a session without streams lives on: long enough for a
// program that opens one connection after the other.
const idleTime = 500 * time.Millisecond

// left is called when the last stream has gone.
func (s *session) left() {
	switch {
	case !s.dialed && !s.goingAway.Load():
	case s.dialed && !s.dedicated:
		s.flushChecks.Store(0)
		s.expireAfter(idleTime)
	case s.link.OnWire():
		s.flushChecks.Store(0)
		s.expireAfter(flushCheck)
	default:
		s.expire()
	}
}

// flushCheck is how often a session that is to end looks whether the network
// has delivered what it sent.
const flushCheck = time.Millisecond

func (s *session) expireAfter(d time.Duration) {
	s.idleMu.Lock()
	defer s.idleMu.Unlock()
	if s.failed.Load() {
		return
	}
	if s.idleTimer == nil {
		s.idleTimer = time.AfterFunc(d, s.expire)
		return
	}
	s.idleTimer.Reset(d)
}

// expire closes the session if it has had no stream since left.
func (s *session) expire() {
	if s.link.OnWire() && s.underWay() && s.flushChecks.Add(1) < int32(flushTime/flushCheck) {
		s.expireAfter(flushCheck)
		return
	}
	if s.streams.shutIfEmpty() {
		s.fail(errSessionIdle)
	}
}

func (s *session) stopIdleTimer() {
	s.idleMu.Lock()
	defer s.idleMu.Unlock()
	if s.idleTimer != nil {
		s.idleTimer.Stop()
	}
}
