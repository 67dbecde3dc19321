package rnet

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// The session window bounds what all streams of a session together may hold
// unread at the receiver. A DATA frame that ends within streamMinimum bytes of what
// its stream's reader has taken, as far as the peer was told of that, is free. All
// others count, each as a whole, and have flagCounted. What counts is limited by an
// absolute position, as the window of a stream is.
//
// So streams that nobody reads can use up the session window, but not stop another:
// each has its minimum besides. Who stands still with it says so (BLOCKED), and is
// told from then on of all that is read, however little.
//
// The receiver counts a stream's bytes as long as they are unread, and no more of
// them than are.

// streamMinimum is what each stream may hold besides the session window: what the
// least chunk of memory takes anyway.
const streamMinimum = 1 << 10

// shareState is what a stream has to do with the session window when it sends. txMu
// guards it.
type shareState struct {
	wants int32 // bytes that it waits to send
	woken bool  // woken from shareWait, and not back yet
	told  bool  // the peer knows that it waits there, or did
}

// sharedSender is the sender's side. txMu guards it.
type sharedSender struct {
	share     ring.SendWindow // counted bytes that may be sent
	shareWait connQueue       // streams that wait for more
	pledged   int             // bytes of share for those that were woken from it
}

// sharedReceiver is the receiver's side.
type sharedReceiver struct {
	counted     uint64        // counted bytes that arrived; guarded by the poll lock
	freedAtOnce uint64        // of these, read on arrival, and not in freed yet; guarded by the poll lock
	freed       atomic.Uint64 // read, or thrown away
	shareTold   atomic.Uint64 // position that the peer was last told; written under txMu
}

func (s *session) initShare() error {
	s.shareTold.Store(uint64(s.cfg.sessionWindow))
	return s.share.Init(s.peer.sessionWindow)
}

// allot returns how much of want bytes c may send as one frame, as far as the
// session window goes. txMu is held, and c's window is as the peer has last told.
func (s *session) allot(c *Conn, want int) int {
	free := c.send.free()
	if want <= free {
		return want
	}
	woken := s.backForShare(c)
	avail := s.share.Avail()
	if first := s.shareWait.first(); !woken && first != nil && first != c {
		avail = 0
	}
	switch {
	case want <= avail:
		return want
	case avail >= link.MinPiece && avail > free:
		return avail
	}
	return free
}

// charge counts a frame of n bytes of c, if it is not free, and returns its flags.
// txMu is held.
func (s *session) charge(c *Conn, n int) (flags uint8) {
	if n > c.send.free() {
		s.share.Take(n)
		c.send.share.told = false
		flags = flagCounted
	}
	c.send.window.Take(n)
	return flags
}

// awaitShare puts c in line for the session window, and lets the peer know. txMu is
// held.
func (s *session) awaitShare(c *Conn, want int) {
	c.send.share.wants = int32(want)
	s.shareWait.push(c, shareLink)
	s.stats.creditStalls.Add(1)
	if !c.send.share.told {
		c.send.share.told = true
		c.send.ctl |= ctlBlocked
		s.ctlQueue.push(c, ctlLink)
		s.flushControl()
	}
}

// leaveShare takes c out of the line, when it has sent or given up. txMu is held;
// wakeShare comes before it is given up.
func (s *session) leaveShare(c *Conn) {
	s.backForShare(c)
	s.shareWait.remove(c, shareLink)
}

// backForShare notes that c is back, and reports whether it was woken from the line.
func (s *session) backForShare(c *Conn) bool {
	if !c.send.share.woken {
		return false
	}
	c.send.share.woken = false
	s.pledged -= int(c.send.share.wants)
	return true
}

// wakeShare wakes those first in line for whom there is something. It is called
// before txMu is given up by whoever has changed the line, the window, or what is
// pledged of it: so nobody waits for what is there.
func (s *session) wakeShare() {
	for c := s.shareWait.first(); c != nil; c = s.shareWait.first() {
		if s.share.Avail()-s.pledged < min(int(c.send.share.wants), link.MinPiece) {
			return
		}
		s.shareWait.pop(shareLink)
		c.send.share.woken = true
		s.pledged += int(c.send.share.wants)
		c.send.wake()
	}
}

// shareGranted takes a SESSION_WINDOW frame. The owner of the poll lock calls it.
func (s *session) shareGranted(payload []byte) error {
	limit, err := parseWindow(payload)
	if err != nil {
		return err
	}
	s.txMu.Lock()
	defer s.txMu.Unlock()
	if err := s.share.Grant(limit); err != nil {
		return fmt.Errorf("%w: session window: %w", errProtocol, err)
	}
	s.wakeShare()
	return nil
}

// arrive counts n bytes of a frame of c that has arrived, kept of which no Read has
// waited for. Who delivers it calls it, with the receive half's mu held.
func (s *session) arrive(c *Conn, n, kept int, counted bool) error {
	if !counted {
		read := c.recv.flow.Granted() - uint64(s.cfg.window)
		if end := c.recv.flow.Arrived(); end > read+streamMinimum {
			return fmt.Errorf("%w: stream %#x: %d bytes up to %d do not count, %d were read",
				errProtocol, c.id, n, end, read)
		}
		return nil
	}
	if err := s.arriveForNobody(n); err != nil {
		return err
	}
	s.freedAtOnce -= uint64(kept)
	c.recv.counted += int32(kept)
	c.recv.eager = false
	return nil
}

// arriveForNobody counts n bytes that are not kept. The owner of the poll lock calls it.
func (s *session) arriveForNobody(n int) error {
	s.counted += uint64(n)
	if told := s.shareTold.Load(); s.counted > told {
		return fmt.Errorf("%w: %d bytes count on the session, %d were granted", errProtocol, s.counted, told)
	}
	s.freedAtOnce += uint64(n)
	return nil
}

// untoldShare returns by how much the peer's session window would open.
func (s *session) untoldShare() uint64 {
	return s.freed.Load() + uint64(s.cfg.sessionWindow) - s.shareTold.Load()
}

// settleAtOnce adds to freed what was read on arrival, when much has come together,
// and tells the peer. The owner of the poll lock calls it.
func (s *session) settleAtOnce() {
	if s.freedAtOnce >= uint64(s.cfg.sessionWindow)/8 {
		s.addFreed()
		if s.untoldShare() >= uint64(s.cfg.sessionWindow)/4 {
			s.tellShare()
		}
	}
}

func (s *session) addFreed() {
	s.freed.Add(s.freedAtOnce)
	s.freedAtOnce = 0
}

// peerBlocked takes a BLOCKED frame: the peer has data for c, and neither session
// window nor what is free. The owner of the poll lock calls it.
func (s *session) peerBlocked(c *Conn) {
	s.addFreed()
	s.tellShare()
	if c == nil {
		return
	}
	c.recv.mu.Lock()
	c.recv.eager = true
	bits := c.recv.settle(c.recv.err == nil && !c.closed.Load())
	c.recv.mu.Unlock()
	if bits != 0 {
		s.control(c, bits)
	}
}

// tellShare tells the peer of the session window, if that has moved.
func (s *session) tellShare() {
	s.txMu.Lock()
	s.ctlShare = true
	s.flushControl()
	s.txMu.Unlock()
}

// postShare posts a SESSION_WINDOW frame, if there is something to tell. txMu is
// held.
func (s *session) postShare() error {
	untold := s.untoldShare()
	if untold == 0 {
		return nil
	}
	limit := s.shareTold.Add(untold)
	binary.LittleEndian.PutUint64(s.winScratch[:], limit)
	return s.link.Send(link.Header{Kind: frameSessionWindow}, s.winScratch[:])
}
