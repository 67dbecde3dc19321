package rnet

import (
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// polled is a session as its poll lock sees it.
type polled session

func (s *polled) Poll() int    { return (*session)(s).poll() }
func (s *polled) Failed() bool { return s.failed.Load() }
func (s *polled) Disarm()      { s.cq.Disarm() }

func (s *polled) Arm() error {
	if err := s.cq.Arm(false); err != nil {
		(*session)(s).fail(err)
		return err
	}
	return nil
}

// peerOnHost is what a provider offers when both ends are on one host.
type peerOnHost interface {
	wait.Peer
	// PeerIsLocal reports whether the peer is in this process.
	PeerIsLocal() bool
}

// initWaiting makes the session the owner of its poll lock, until it starts.
func (s *session) initWaiting() {
	caps := s.dev.ctx.Attr().Caps
	s.threads = caps.Has(verbs.CapThreadWait)
	cfg := wait.Config{Profile: s.cfg.profile, Thread: s.threads, Wire: s.onWire}
	if peer, ok := s.qp.Driver().(peerOnHost); ok {
		s.cpus, cfg.Peer = peer, peer
	}
	s.pollLock.Init((*polled)(s), s.ch, cfg)
}

// release gives up the poll lock of a session that has started: to its event
// loop, or to whoever waits.
func (s *session) release() {
	if s.poller != nil {
		s.pollLock.Station()
		return
	}
	s.pollLock.Start(s.cpus != nil && s.cpus.PeerIsLocal())
}

// engine is the session's goroutine: it polls when nobody else does and
// something arrives, and it ends the session.
func (s *session) engine() {
	s.pollLock.Run(&wait.Engine{Period: keepAlivePeriod, Tick: s.keepAlive, Elsewhere: s.onLoopEvent})
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

// drain polls until the QP has flushed: everything that arrived before the
// failure is delivered first. The caller owns the poll lock, for good.
func (s *session) drain() {
	for s.poll() > 0 {
	}
}
