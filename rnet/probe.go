package rnet

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A probe is an RDMA READ from the peer's ring, of no bytes. The peer's device
// answers it, after all that was sent before, whatever the peer's process
// does; it takes neither a receive nor room in the ring, so it can be sent
// when nothing else can. Two things are found out by it:
//
//   - that the peer is still there, when there is nothing else to tell it:
//     a device on a network does not notice the death of a machine by itself,
//     and on iWARP TCP repeats for a quarter of an hour what nobody receives;
//   - on iWARP, that the peer's device has what was sent. Elsewhere a WRITE is
//     done when it has arrived, there when TCP has taken it, and what TCP has
//     may be lost when the process ends.
//
// One probe at most is under way. On devices without immediates it reads a few
// bytes, which nobody looks at: the kernel's siw driver answers a READ of none
// with as many as it sent last, if it is busy when it has to (siw_activate_tx
// leaves sge[0] as it was; kernels 6.1 to 6.12). The ring allows that there: all
// that is in it was written by the one who reads.
type probing struct {
	probes      bool          // probes can be sent; set before the session starts
	probed      uint64        // probes posted so far
	probeWanted atomic.Bool   // one more, when the one under way is back; written under txMu
	probesDone  atomic.Uint64 // probes that are back; written by the leader

	// Of the engine alone.
	lastProbe uint64    // probe of the last keepAlive
	lastLife  lifeSigns // and what had come by then
}

// probe sends a probe, or makes sure that one will be, and returns its number.
// txMu is held.
func (s *session) probe() (number uint64, err error) {
	number = s.probed + 1
	if s.probed != s.probesDone.Load() {
		s.probeWanted.Store(true)
		if s.probed != s.probesDone.Load() { // otherwise the leader may not have seen it
			return number, nil
		}
	}
	s.probeWanted.Store(false)
	return number, s.postProbe()
}

// postProbe posts a probe. It has a place in the send queue of its own, and
// does not count as one of the WRs whose completions are in order: devices of
// iWARP may be done with a later WRITE before. txMu is held.
func (s *session) postProbe() error {
	if s.txDead {
		return syscall.ECONNRESET
	}
	s.probed++
	wr := &s.wr[0]
	wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRead, s.peer.ringAddr, s.peer.ringKey
	wr.Inline, wr.SGL, wr.Flags = nil, nil, verbs.SendSignaled
	if s.notices != nil {
		wr.SGL = s.notices.sink[:]
	}
	_, err := s.qp.PostSend(s.wr[:])
	if err != nil {
		s.txDead = true
	}
	return err
}

// probeAgain is called by the leader when a probe has come back and another
// one is wanted.
func (s *session) probeAgain() {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	if !s.probeWanted.Load() || s.probed != s.probesDone.Load() || s.txDead {
		return
	}
	s.probeWanted.Store(false)
	if err := s.postProbe(); err != nil {
		go s.fail(fmt.Errorf("rnet: send probe: %w", err))
	}
}

// markEnd notes in lastFin what has to be done for the end of a stream, which
// was just posted, to have arrived. txMu is held.
func (s *session) markEnd() (err error) {
	s.lastFin = sendMark{wrs: s.sqPosted}
	if s.probes && s.notices != nil {
		s.lastFin.probes, err = s.probe()
	}
	return err
}

// keepAlivePeriod is how often a session finds out whether its peer can be
// reached.
const keepAlivePeriod = 15 * time.Second

// keepAlive is called by the engine every keepAlivePeriod. A device that
// repeats what is not acknowledged fails the QP by itself; TCP, below iWARP,
// does so only after a quarter of an hour. So a session ends on which a probe
// has been under way for a whole period in which nothing else came either.
func (s *session) keepAlive() {
	s.trim()
	if !s.probes {
		if s.onWire || s.streams.len() > 0 {
			s.sessionControl(true, false)
		}
		return
	}
	life := s.lifeSigns()
	if s.lastProbe > s.probesDone.Load() && life == s.lastLife {
		s.fail(fmt.Errorf("%w: nothing came from the peer for %v", syscall.ETIMEDOUT, keepAlivePeriod))
		return
	}
	s.txMu.Lock()
	number, err := s.probe()
	s.txMu.Unlock()
	s.lastProbe, s.lastLife = number, life
	if err != nil {
		s.fail(fmt.Errorf("rnet: send probe: %w", err))
	}
}

// lifeSigns changes when anything comes from the peer.
type lifeSigns struct{ frames, released, posted, done, probes uint64 }

func (s *session) lifeSigns() lifeSigns {
	s.rxMu.Lock()
	frames := s.in.frames
	s.rxMu.Unlock()
	return lifeSigns{frames, s.peerReleased.Load(), s.peerPosted.Load(), s.sqDone.Load(), s.probesDone.Load()}
}
