package rnet

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// The way of a byte in:
//
//  1. The leader polls the CQ. A completion of a WRITE_WITH_IMM says that a
//     message of so many bytes lies at the next place of the receive ring.
//     Devices without immediates: notice.go.
//  2. Each frame of it goes to its stream: into the buffer of a Read that
//     waits, if there is one; otherwise a small payload is copied to a chunk
//     of ordinary memory, and a large one stays in the ring as a chunk.
//  3. When the batch is done, what no chunk keeps is released, receives are
//     posted again, and the peer is told when a quarter has come together.
//  4. A reader that has emptied a chunk frees its part of the ring. Chunks
//     whose readers are slow are moved out of the ring before they hold up
//     the others (spill).
type receiver struct {
	// Guarded by the poll lock.
	wcs       [pollBatch]verbs.WC
	recvWRs   []verbs.RecvWR // what repost posts; all the same
	owed      int            // receives used up and not posted again
	owedData  int            // of these, how many count as slots
	opens     uint64         // streams that the peer has opened
	rxSlots   ring.RecvSlots
	newCredit bool // the batch brought credit
	lied      bool // the peer broke the protocol: nothing it writes counts any more

	rxMu  sync.Mutex
	rx    ring.Rx // guarded by rxMu
	in    traffic // guarded by rxMu
	kept  keptRing
	asked uint64 // released position at which sendCredit was called; guarded by rxMu
	sharedReceiver
	gone bool // the session is over: the last chunk closes the ring; guarded by rxMu

	released atomic.Uint64 // ring bytes released; written under rxMu
	posted   atomic.Uint64 // receives posted for data; written by the leader

	goingAway atomic.Bool // the peer opens no more streams, or lets us open none
}

const (
	// keepMin is the payload from which staying in the ring is cheaper than
	// a copy to a chunk.
	keepMin = 4 << 10
	// repostBatch is how many receives are posted again at a time.
	repostBatch = 64
)

var errProtocol = errors.New("protocol violation")

// postReceives fills the receive queue before the peer can write.
func (s *session) postReceives() error {
	s.recvWRs = make([]verbs.RecvWR, repostBatch)
	for left, _ := s.queues(); left > 0; {
		n, err := s.postRecvs(left)
		if err != nil {
			return err
		}
		left -= n
	}
	s.posted.Store(s.rxSlots.Posted())
	return nil
}

// postRecvs posts up to count receives and returns how many.
func (s *session) postRecvs(count int) (int, error) {
	if s.notices != nil {
		n, err := s.qp.PostRecv(s.notices.receives(count))
		s.notices.posted(n)
		return n, err
	}
	return s.qp.PostRecv(s.recvWRs[:min(count, len(s.recvWRs))])
}

// poll takes one batch off the CQ and works on it. The caller leads. It
// returns how many completions there were; after a failure of the session it
// goes on to drain the CQ.
func (s *session) poll() int {
	n, err := s.cq.Poll(s.wcs[:s.batch])
	if err != nil {
		s.fail(fmt.Errorf("rnet: poll CQ: %w", err))
		return 0
	}
	if n == 0 {
		return 0
	}
	var broken error
	looped := s.onLoop()
	s.rxMu.Lock()
	for i := range s.wcs[:n] {
		// What arrived after a failure of ours is still good, and where a
		// message lies is known only if none before it is left out.
		if err := s.complete(&s.wcs[i]); err != nil && broken == nil {
			broken = err
		}
		if !looped && s.wcs[i].ByteLen >= keepMin && s.releaseLocked() {
			s.sendCredit() // the peer need not wait for the end of the batch
		}
	}
	s.settleAtOnce()
	due := false
	if !looped { // dispatch releases
		if s.rx.Retained() > int(s.cfg.ringSize)/2 {
			s.spill(int(s.cfg.ringSize) / 4)
		}
		due = s.releaseLocked()
	}
	s.rxMu.Unlock()
	if broken != nil {
		s.fail(broken)
		return n
	}
	if !looped || s.notices == nil { // dispatch does: short messages lie in the places of receives
		due = s.repostMany() || due
	}
	if due {
		s.sendCredit()
	}
	if s.newCredit {
		s.newCredit = false
		if s.txBlocked.Load() {
			s.creditCame()
		}
		if s.probeWanted.Load() {
			s.probeAgain()
		}
		if s.sentBlocked.Load() {
			s.wakeDone()
		}
	}
	return n
}

// complete works on one completion. rxMu is held.
func (s *session) complete(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		if wc.Status == verbs.WCWRFlushErr && s.failed.Load() {
			return nil
		}
		return fmt.Errorf("%w: %w", syscall.ECONNRESET, wc.Err())
	}
	var short []byte
	if s.notices != nil && wc.Opcode == verbs.WCRecv {
		var err error
		if short, err = s.notices.read(wc); err != nil {
			return err
		}
	}
	switch wc.Opcode {
	case verbs.WCRecvWriteWithImm:
		s.owed++
		if wc.Imm&immCredit != 0 {
			released, slots := parseCreditImm(wc.Imm, s.peerReleased.Load(), s.peer.ringSize)
			s.noteCredit(released, slots)
			return nil
		}
		s.owedData++
		if s.lied {
			return nil
		}
		var err error
		if short != nil {
			err = s.takeFrames(short)
		} else {
			err = s.message(wc)
		}
		s.lied = err != nil
		return err
	case verbs.WCWrite, verbs.WCSend: // only what we asked a completion for
		s.stageDone.Add(wc.ID >> 32)
		s.sqDone.Add(wc.ID & (1<<32 - 1))
		s.newCredit = true
		return nil
	case verbs.WCRead:
		s.probesDone.Add(1)
		s.newCredit = true
		return nil
	}
	return fmt.Errorf("%w: completion of operation %d", errProtocol, wc.Opcode)
}

// message works on one message that was written to the ring.
func (s *session) message(wc *verbs.WC) error {
	if wc.Imm&immRestart != 0 {
		if err := s.restart(); err != nil {
			return err
		}
	}
	off, err := s.rx.Place(int(wc.ByteLen))
	if err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	// The ring counts as released what nobody keeps. What was not published yet
	// (an event loop has noted it, and not handled it) the peer has no credit for.
	if released := s.released.Load(); s.rx.Placed()-released > uint64(s.cfg.ringSize) {
		return fmt.Errorf("%w: message of %d bytes reaches to %d, released %d, ring %d",
			errProtocol, wc.ByteLen, s.rx.Placed(), released, s.cfg.ringSize)
	}
	return s.takeFrames(s.rxMR.Bytes()[off : off+wc.ByteLen])
}

// restart goes on at the start of the ring, as the peer does. Only who was told that
// all is released may.
func (s *session) restart() error {
	if err := s.rx.Restart(); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	if released := s.released.Load(); released != s.rx.Placed() {
		return fmt.Errorf("%w: restart of the ring at %d, released %d", errProtocol, s.rx.Placed(), released)
	}
	return nil
}

// takeFrames works on the frames of one message.
func (s *session) takeFrames(rest []byte) (err error) {
	for len(rest) > 0 {
		var h frameHeader
		var payload []byte
		if h, payload, rest, err = parseFrame(rest); err != nil {
			return fmt.Errorf("%w: %w", errProtocol, err)
		}
		s.noteCredit(s.peerReleased.Load()+ahead32(h.credit, s.peerReleased.Load()), h.slots)
		if err = s.frame(&h, payload); err != nil {
			return err
		}
	}
	return nil
}

// ahead32 returns how far the position with the given low bits lies beyond
// known, 0 if it is a stale one.
func ahead32(low uint32, known uint64) uint64 {
	return uint64(max(0, int32(low-uint32(known))))
}

// noteCredit stores what the peer gave back. Whether it is a lie is seen by
// who takes it.
func (s *session) noteCredit(released uint64, slots uint16) {
	if released > s.peerReleased.Load() {
		s.peerReleased.Store(released)
		s.newCredit = true
	}
	posted := s.peerPosted.Load()
	if ahead := int16(slots - uint16(posted)); ahead > 0 {
		s.peerPosted.Store(posted + uint64(ahead))
		s.newCredit = true
	}
}

// frame works on one frame. An error ends the session.
func (s *session) frame(h *frameHeader, payload []byte) error {
	s.in.frames++
	if h.kind == frameData {
		if c := s.streams.get(h.stream); c != nil {
			s.in.bytes += uint64(len(payload))
			return c.deliver(payload, h.flags&flagCounted != 0)
		}
		if h.flags&flagCounted != 0 {
			return s.arriveForNobody(len(payload))
		}
		return nil // late data of a stream that is gone
	}
	return s.controlFrame(h, payload)
}

func (s *session) controlFrame(h *frameHeader, payload []byte) error {
	c := s.streams.get(h.stream)
	switch h.kind {
	case frameOpen:
		return s.peerOpened(h.stream, payload, h.flags&flagCounted != 0)
	case frameWindow:
		limit, err := parseWindow(payload)
		if err != nil {
			return err
		}
		if c != nil {
			c.grant(limit)
		}
	case frameFin:
		if c != nil {
			c.finished(h.flags&flagClosed != 0)
		}
	case frameReset:
		if c != nil {
			c.reset()
		}
	case framePing:
	case frameSessionWindow:
		return s.shareGranted(payload)
	case frameBlocked:
		s.peerBlocked(c)
	case frameGoAway:
		s.peerLeaves()
	case frameAddrs:
		return s.addrsCame(payload)
	default:
		return fmt.Errorf("%w: frame of kind %d", errProtocol, h.kind)
	}
	return nil
}

// peerOpened makes the stream that the peer opens.
func (s *session) peerOpened(id uint32, payload []byte, counted bool) error {
	if s.dialed {
		return fmt.Errorf("%w: the listening side opens a stream", errProtocol)
	}
	s.opens++
	c := newConn(s)
	c.id = id
	if !s.streams.insert(c) {
		if s.streams.get(id) != nil {
			return fmt.Errorf("%w: stream %#x opened twice", errProtocol, id)
		}
		if counted {
			if err := s.arriveForNobody(len(payload)); err != nil {
				return err
			}
		}
		return s.refuse(id)
	}
	s.giveAddrs()
	refused := s.onLoop() && !s.loopAccepts(c)
	if len(payload) > 0 {
		if err := c.deliver(payload, counted); err != nil {
			return err
		}
	}
	if refused || !s.onLoop() && !s.accept(c) {
		c.refuse()
	}
	return nil
}

// repostMany calls repost if it is worth it.
func (s *session) repostMany() (due bool) {
	return (s.owed >= repostBatch || s.owed-s.owedData >= controlSlots/2) && s.repost()
}

// repost posts receives in the place of those used up and reports whether the
// peer may want to know.
func (s *session) repost() (due bool) {
	for s.owed > 0 {
		n, err := s.postRecvs(s.owed)
		if err != nil {
			if !s.failed.Load() {
				s.fail(fmt.Errorf("rnet: post receives: %w", err))
			}
			return false
		}
		s.owed -= n
	}
	s.rxSlots.Post(s.owedData)
	s.owedData = 0
	s.posted.Store(s.rxSlots.Posted())
	if due = s.rxSlots.CreditDue(); due {
		s.rxSlots.TakeCredit()
	}
	return due
}

// releaseLocked publishes what is released and reports whether sendCredit is
// worth a call. rxMu is held.
func (s *session) releaseLocked() (due bool) {
	released := s.rx.Released()
	if released == s.released.Load() {
		return false
	}
	s.released.Store(released)
	if released-s.asked < uint64(s.cfg.ringSize)/8 {
		return false
	}
	s.asked = released
	return true
}

type traffic struct{ frames, bytes uint64 }
