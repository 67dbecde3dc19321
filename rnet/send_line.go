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
	woken := s.back(c)
	queued := woken || c.send.links[txLink].in
	if err := c.send.ended(); err != nil {
		s.passOn(c, queued)
		s.leaveShare(c)
		return 0, sendFailed, err
	}
	if c.send.peerGone {
		s.passOn(c, queued)
		s.leaveShare(c)
		n, err := c.send.sendToNobody(p)
		if err != nil {
			return 0, sendFailed, err
		}
		return n, sendOK, nil
	}
	want := min(len(p), s.link.MaxPayload())
	if min(c.send.window.Avail(), c.send.free()) < want {
		if err := c.send.window.Grant(c.send.granted.Load()); err != nil {
			go s.fail(fmt.Errorf("rnet: peer opened the window too far: %w", err))
			return 0, sendFailed, syscall.ECONNRESET
		}
		if want = min(want, c.send.window.Avail()); want == 0 {
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
	if woken && s.corked && want == len(p) && s.flushControl() && s.gatherFrame(c, p) {
		return want, sendOK, nil // tellUnblocked wakes the next
	}
	if !s.txBlocked.Load() || s.mayBarge(queued) {
		if n := s.link.Room(want); n > 0 {
			return s.sendFrame(c, p[:n], out, off)
		}
	}
	c.send.wants = want
	if woken {
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
		s.txWait.remove(c, txLink) // woken by something else
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
	s.back(c)
	s.passOn(c, true)
	s.leaveShare(c)
	s.wakeShare()
	s.txMu.Unlock()
}

// The most writers that are awake because they were first in line. Each that comes back
// makes room for the next. More of them than can send would only go back to the
// line, all for each bit of credit; an event loop has a list of them, and takes
// it as a whole.
const (
	wakeBatch     = 16
	wakeBatchLoop = 128
)

// back notes that c is back, and reports whether it was woken from the line. txMu is
// held.
func (s *session) back(c *Conn) bool {
	if !c.send.woken {
		return false
	}
	c.send.woken = false
	s.awake--
	s.promised -= c.send.wants + link.HeaderLen
	return true
}

// wakeFirst wakes the first in line, if there is room for it beside
// those that are awake. txMu is held.
func (s *session) wakeFirst() bool {
	c := s.txWait.first()
	if s.link.Room(c.send.wants) < 0 {
		return false
	}
	need := c.send.wants + link.HeaderLen
	messages, bytes := s.link.Unused()
	if s.awake > 0 && (s.awake >= messages || s.promised+need > bytes) {
		return false
	}
	s.txWait.pop(txLink)
	c.send.woken = true
	s.awake++
	s.promised += need
	c.send.wake()
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
	for s.awake < batch {
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
		s.txWait.pop(txLink).send.wake()
	}
	for !s.shareWait.empty() {
		s.shareWait.pop(shareLink).send.wake()
	}
	for !s.ctlQueue.empty() {
		c := s.ctlQueue.pop(ctlLink)
		c.send.ctl = 0
		c.send.wake()
	}
	for !s.sentWait.empty() {
		s.sentWait.pop(sentLink).send.wake()
	}
}
