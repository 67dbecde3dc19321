package rnet

import (
	"fmt"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// sendResult says how send ended if nothing was sent.
type sendResult uint8

const (
	sendOK     sendResult = iota
	sendWindow            // the stream's window is used up
	sendRoom              // the session's credit is
	sendShare             // the session window is
	sendFailed            // err tells
)

// send sends as much of p as one frame holds. Who is woken from txWait need not
// stand in line again.
//
// The bytes lie at off of out, or in ordinary memory if out is nil.
func (s *session) send(c *Conn, p []byte, out *link.Buffer, off int) (int, sendResult, error) {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	defer s.wakeShare()
	turn := s.endTurn(c)
	queued := turn || c.links[txLink].in
	if err := c.sendEnded(); err != nil {
		s.passOn(c, queued)
		s.leaveShare(c)
		return 0, sendFailed, err
	}
	if c.peerGone {
		s.passOn(c, queued)
		s.leaveShare(c)
		n, err := c.sendToNobody(p)
		if err != nil {
			return 0, sendFailed, err
		}
		return n, sendOK, nil
	}
	want := min(len(p), s.link.MaxPayload())
	if min(c.window.Avail(), c.free()) < want {
		if err := c.window.Grant(c.granted.Load()); err != nil {
			go s.fail(fmt.Errorf("rnet: peer opened the window too far: %w", err))
			return 0, sendFailed, syscall.ECONNRESET
		}
		if want = min(want, c.window.Avail()); want == 0 {
			s.passOn(c, queued)
			s.leaveShare(c)
			return 0, sendWindow, nil
		}
	}
	wanted := want
	if want = s.allot(c, want); want == 0 {
		s.passOn(c, queued)
		s.awaitShare(c, wanted)
		return 0, sendShare, nil
	}
	if turn && s.corked && want == len(p) && s.flushControl() && s.gatherFrame(c, p) {
		return want, sendOK, nil // tellUnblocked wakes the next
	}
	if !s.txBlocked.Load() || s.mayBarge(queued) {
		if n := s.link.Room(want); n > 0 {
			return s.sendFrame(c, p[:n], out, off)
		}
	}
	c.wants = want
	if turn {
		s.txWait.pushFirst(c, txLink)
	} else {
		s.txWait.push(c, txLink)
	}
	s.txBlocked.Store(true)
	if s.txWait.first() == c { // see txBlocked
		if n := s.link.Room(want); n > 0 {
			s.txWait.remove(c, txLink)
			return s.sendFrame(c, p[:n], out, off)
		}
	}
	s.stats.creditStalls.Add(1)
	return 0, sendRoom, nil
}

// mayBarge reports whether a writer may send although something is blocked:
// control frames go first, then those who stood in line.
func (s *session) mayBarge(queued bool) bool {
	return s.flushControl() && (queued || s.txWait.empty())
}

func (s *session) sendFrame(c *Conn, p []byte, out *link.Buffer, off int) (int, sendResult, error) {
	h := link.Header{Stream: c.id, Kind: frameData, Flags: s.charge(c, len(p))}
	var err error
	if out == nil {
		err = s.link.Send(h, p)
	} else {
		err = s.link.SendFrom(h, out, off, len(p))
	}
	if err != nil {
		go s.fail(fmt.Errorf("rnet: send: %w", err))
		return 0, sendFailed, syscall.ECONNRESET
	}
	s.leaveShare(c)
	s.framesOut++
	s.bytesOut += uint64(len(p))
	if !s.txWait.empty() {
		s.txWait.remove(c, txLink) // woken by something else than its turn
		s.wakeLine()
	}
	return len(p), sendOK, nil
}

// passOn takes a writer out of the line that does not send, and wakes the next
// in its place. txMu is held.
func (s *session) passOn(c *Conn, queued bool) {
	if queued {
		s.txWait.remove(c, txLink)
		s.wakeLine()
	}
}

// leaveLine takes c out of txWait, when it gives up, or makes sure that the
// next in line is woken, when c had been.
func (s *session) leaveLine(c *Conn) {
	s.txMu.Lock()
	s.endTurn(c)
	s.passOn(c, true)
	s.leaveShare(c)
	s.wakeShare()
	s.txMu.Unlock()
}

// The most writers that are awake because of their turn. Each that comes back
// makes room for the next. More of them than can send would only go back to the
// line, all for each bit of credit; an event loop has a list of them, and takes
// it as a whole.
const (
	wakeBatch     = 16
	wakeBatchLoop = 128
)

// endTurn notes that c is back, and reports whether it was its turn. txMu is
// held.
func (s *session) endTurn(c *Conn) bool {
	if !c.turn {
		return false
	}
	c.turn = false
	s.turns--
	s.promised -= c.wants + link.HeaderLen
	return true
}

// wakeFirst gives the first in line its turn, if there is room for it beside
// those that have theirs. txMu is held.
func (s *session) wakeFirst() bool {
	c := s.txWait.first()
	if s.link.Room(c.wants) < 0 {
		return false
	}
	need := c.wants + link.HeaderLen
	messages, bytes := s.link.Unused()
	if s.turns > 0 && (s.turns >= messages || s.promised+need > bytes) {
		return false
	}
	s.txWait.pop(txLink)
	c.turn = true
	s.turns++
	s.promised += need
	c.wakeWriter()
	return true
}

// creditCame is called by the owner of the poll lock after it noted credit while something
// was blocked.
func (s *session) creditCame() {
	s.txMu.Lock()
	s.wakeLine()
	s.txMu.Unlock()
}

// wakeLine sends control frames and wakes writers, as far as there is room.
// txMu is held.
func (s *session) wakeLine() {
	if !s.flushControl() {
		return
	}
	batch := wakeBatch
	if s.onLoop() {
		batch = wakeBatchLoop
	}
	for s.turns < batch {
		if s.txWait.empty() {
			s.txBlocked.Store(false)
			return
		}
		if !s.wakeFirst() {
			return
		}
	}
}

// wakeSenders wakes all who wait to send: the session is dead.
func (s *session) wakeSenders() {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	s.link.Stop()
	for !s.txWait.empty() {
		s.txWait.pop(txLink).wakeWriter()
	}
	for !s.shareWait.empty() {
		s.shareWait.pop(shareLink).wakeWriter()
	}
	for !s.ctlQueue.empty() {
		c := s.ctlQueue.pop(ctlLink)
		c.ctl = 0
		c.wakeWriter()
	}
	for !s.sentWait.empty() {
		s.sentWait.pop(sentLink).wakeWriter()
	}
}
