package rnet

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// The control frames that a stream can have queued. They are idempotent bits:
// queueing needs no memory, and the queue cannot grow beyond the streams.
const (
	ctlOpen uint8 = 1 << iota
	ctlWindow
	ctlFin
	ctlReset
	ctlBlocked
	ctlShare // the session window, on behalf of a stream
)

// control queues control frames of c and sends what can be sent.
func (s *session) control(c *Conn, bits uint8) {
	s.txMu.Lock()
	s.ctlShare = s.ctlShare || bits&ctlShare != 0
	if bits &^= ctlShare; bits != 0 {
		c.send.ctl |= bits
		s.ctlQueue.push(c, ctlLink)
	}
	s.flushControl()
	s.txMu.Unlock()
}

// forgetControl takes back what was to be said about a stream that the peer
// has ended.
func (s *session) forgetControl(c *Conn) {
	s.txMu.Lock()
	c.send.ctl = 0
	s.ctlQueue.remove(c, ctlLink)
	s.txMu.Unlock()
}

// maxRefusals bounds what a peer that opens too many streams, and takes no
// answer, can make us remember.
const maxRefusals = 1024

// refuse queues a reset for a stream that was not taken. An error means that
// the peer has too many of them.
func (s *session) refuse(id uint32) error {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	if len(s.refusals) >= maxRefusals {
		return fmt.Errorf("%w: %d streams opened beyond the limit, and no answer taken", errProtocol, len(s.refusals))
	}
	s.refusals = append(s.refusals, id)
	s.flushControl()
	return nil
}

// sessionControl queues a ping or a go-away.
func (s *session) sessionControl(ping, away bool) {
	s.txMu.Lock()
	s.ctlPing = s.ctlPing || ping
	s.ctlAway = s.ctlAway || away
	s.flushControl()
	s.txMu.Unlock()
}

// flushControl sends queued control frames as far as there is room, and
// reports whether all are gone. txMu is held.
func (s *session) flushControl() bool {
	for s.ctlAway || s.ctlPing || s.ctlShare || len(s.ctlAddrs) > 0 || len(s.refusals) > 0 || !s.ctlQueue.empty() {
		if s.link.Stopped() {
			return false
		}
		least := 8
		if len(s.ctlAddrs) > 0 {
			least = addrsLen
		}
		if s.link.Room(least) < least {
			s.txBlocked.Store(true)
			if s.link.Room(least) < least { // see txBlocked
				return false
			}
		}
		var err error
		switch {
		case len(s.ctlAddrs) > 0:
			err = s.postAddrs()
		case s.ctlAway:
			s.ctlAway = false
			err = s.link.Send(link.Header{Kind: frameGoAway}, nil)
		case s.ctlPing:
			s.ctlPing = false
			err = s.link.Send(link.Header{Kind: framePing}, nil)
		case s.ctlShare:
			s.ctlShare = false
			err = s.postShare()
		case len(s.refusals) > 0:
			id := s.refusals[0]
			s.refusals = s.refusals[1:]
			err = s.link.Send(link.Header{Stream: id, Kind: frameReset}, nil)
		default:
			err = s.postControl(s.ctlQueue.first())
		}
		if err != nil {
			go s.fail(fmt.Errorf("rnet: send control frame: %w", err))
			return false
		}
	}
	return true
}

// postControl sends one control frame of c and takes c off the queue when it
// was the last. The order is that of a stream's life.
func (s *session) postControl(c *Conn) (err error) {
	h := link.Header{Stream: c.id}
	switch {
	case c.send.ctl&ctlOpen != 0:
		c.send.ctl &^= ctlOpen
		h.Kind = frameOpen
		err = s.link.Send(h, nil)
	case c.send.ctl&ctlReset != 0:
		c.send.ctl = 0
		if !c.ended() {
			h.Kind = frameReset
			err = s.postEnd(c, h, endReset)
		}
	case c.send.ctl&ctlWindow != 0:
		c.send.ctl &^= ctlWindow
		if !c.ended() {
			h.Kind = frameWindow
			s.stats.windowsSent.Add(1)
			err = s.link.Send(h, c.recv.takeUpdate())
		}
	case c.send.ctl&ctlBlocked != 0:
		c.send.ctl &^= ctlBlocked
		if !c.ended() {
			h.Kind = frameBlocked
			err = s.link.Send(h, nil)
		}
	case c.send.ctl&ctlFin != 0:
		c.send.ctl &^= ctlFin
		bits := endFinSent
		h.Kind = frameFin
		if c.closed.Load() {
			bits |= endCloseSent
			h.Flags = flagClosed
		}
		if !c.ended() && c.ends.Load()&bits != bits { // a Close after CloseWrite has more to say
			err = s.postEnd(c, h, bits)
		}
	}
	if c.send.ctl == 0 {
		s.ctlQueue.remove(c, ctlLink)
	}
	return err
}

// postEnd sends a frame that ends c. The end is noted before it is posted: the
// peer may answer, and use the id again, at once. But the session may end with
// its last stream only after that.
func (s *session) postEnd(c *Conn, h link.Header, bits uint32) error {
	last := c.note(bits)
	mark, err := s.link.SendMarked(h, nil)
	if err == nil {
		s.lastFin = mark
	}
	c.send.finAt = s.lastFin
	if bits&endCloseSent != 0 {
		c.send.wake() // a lingering Close
	}
	if last {
		s.left()
	}
	return err
}
