package rnet

import (
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// polled is a session as its poll lock sees it.
type polled session

func (s *polled) Poll() int    { return (*session)(s).poll() }
func (s *polled) Failed() bool { return s.failed.Load() }
func (s *polled) Disarm()      { s.link.Disarm() }

func (s *polled) Arm() error {
	if err := s.link.Arm(); err != nil {
		(*session)(s).fail(err)
		return err
	}
	return nil
}

// initWaiting makes the session the owner of its poll lock, until it starts.
func (s *session) initWaiting() {
	s.threads = s.dev.ctx.Attr().Caps.Has(verbs.CapThreadWait)
	cfg := wait.Config{Profile: s.cfg.profile, Thread: s.threads, Wire: s.link.OnWire()}
	if s.host = s.link.Host(); s.host != nil {
		cfg.Peer = s.host
	}
	s.pollLock.Init((*polled)(s), s.link.Channel(), cfg)
}

// release gives up the poll lock of a session that has started: to its event
// loop, or to whoever waits.
func (s *session) release() {
	if s.poller != nil {
		s.pollLock.Station()
		return
	}
	s.pollLock.Start(s.host != nil && s.host.PeerIsLocal())
}

// engine is the session's goroutine: it polls when nobody else does and
// something arrives, and it ends the session.
func (s *session) engine() {
	s.pollLock.Run(&wait.Engine{Period: link.KeepAlivePeriod, Tick: s.keepAlive, Elsewhere: s.onLoopEvent})
	s.leaveLoop()
	s.pollLock.Close()
	s.drain()
	s.shutdown()
}

// onLoopEvent tells the event loop that serves the session, if one does, of an
// event.
func (s *session) onLoopEvent() bool {
	if !s.onLoop() {
		return false
	}
	s.warm()
	return true
}

// keepAlive is called by the engine every link.KeepAlivePeriod.
func (s *session) keepAlive() {
	wantsFrame, err := s.link.KeepAlive()
	if err != nil {
		s.fail(err)
		return
	}
	if wantsFrame && (s.link.OnWire() || s.streams.len() > 0) {
		s.sessionControl(true, false)
	}
}

// drain polls until the QP has flushed: everything that arrived before the
// failure is delivered first. The caller owns the poll lock, for good.
func (s *session) drain() {
	for s.poll() > 0 {
	}
}
