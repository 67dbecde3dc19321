package rnet

import (
	"fmt"
	"sync/atomic"
	"time"
)

// cork gathers the small frames that an event loop's handlers write while a
// batch of arrivals is handed out, so that several go as one message: one
// receive, one work request and one descriptor for all of them. The same is done
// with those that had to wait and go now.
//
// What is in the cork has a place in the peer's ring for certain: it was there
// when the frame was put in, and who else asks for room sends the cork first.
//
// A handler that takes long must not keep back what others have written before:
// corkWatch sends what has waited for one of its periods.
type cork struct {
	frames []byte // guarded by txMu
	corks  uint64 // how often the cork was begun anew; guarded by txMu

	// Of corkWatch.
	seen    uint64 // corks at the last look
	guarded atomic.Bool

	// Of the loop's goroutine.
	corked bool // handlers of a batch run, or streams that had to wait send
	slow   bool // those of the last batch took their time: their answers do not wait
}

const (
	corkSize    = 4 << 10 // bytes of one message
	corkPayload = 512     // a longer payload goes by itself
	corkFrames  = 8       // arrivals that are answered by one message
	corkMin     = 4       // arrivals for which it is worth it
	slowHandler = 5 * time.Microsecond
)

// sendSoon puts a frame into the cork. It returns false if it has to go the
// usual way.
func (s *session) sendSoon(c *Conn, p []byte) bool {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	defer s.wakeShare()
	if c.sendErr != nil || c.peerGone || s.txBlocked.Load() || c.window.Avail() < len(p) || s.allot(c, len(p)) < len(p) {
		return false
	}
	return s.gatherFrame(c, p)
}

// gatherFrame is sendSoon for a stream that may send. txMu is held.
func (s *session) gatherFrame(c *Conn, p []byte) bool {
	if s.txDead || len(p) > corkPayload || !s.corkTakes(len(p)) {
		return false
	}
	h := frameHeader{stream: c.id, kind: frameData, flags: s.charge(c, len(p)), length: uint32(len(p))}
	h.credit, h.slots = s.piggyback()
	h.put(&s.head)
	if len(s.frames) == 0 {
		s.beginCork()
	}
	s.frames = append(s.frames[:alignFrame(len(s.frames))], s.head[:]...)
	s.frames = append(s.frames, p...)
	s.leaveShare(c)
	s.framesOut++
	s.bytesOut += uint64(len(p))
	return true
}

// beginCork makes room for frames. txMu is held.
func (s *session) beginCork() {
	s.corks++
	if s.frames == nil {
		s.frames = make([]byte, 0, corkSize)
	}
	if !s.guarded.Load() {
		corkWatch.add(s)
	}
}

// corkTakes reports whether a payload of n bytes more can be sent as one
// message with what is in the cork. txMu is held.
func (s *session) corkTakes(n int) bool {
	n += alignFrame(len(s.frames)) + frameHeaderLen
	return n <= corkSize && s.txSlots.Avail() > 0 && s.sqUsed+s.wrsPerMessage() <= s.sqLen &&
		n <= s.stage.room() && n <= max(s.tx.Tail(), s.tx.Room())
}

// uncork sends what is in the cork. txMu is held.
func (s *session) uncork() {
	if len(s.frames) == 0 {
		return
	}
	frames := s.frames
	s.frames = s.frames[:0]
	if s.txDead {
		return
	}
	s.head = [frameHeaderLen]byte(frames)
	if err := s.postMessage(frames[frameHeaderLen:], source{}); err != nil {
		go s.fail(fmt.Errorf("rnet: send: %w", err))
	}
}

// handOut tells the sinks of the events that came in one batch.
func (s *session) handOut() {
	if len(s.events) < corkMin {
		for i := range s.events {
			s.events[i].tell()
		}
		return
	}
	begin := time.Now()
	s.corked = !s.slow
	for i := range s.events {
		s.events[i].tell()
		if s.corked && i%corkFrames == corkFrames-1 {
			s.sendCork()
		}
	}
	if s.corked {
		s.corked = false
		s.sendCork()
	}
	s.slow = time.Since(begin) > time.Duration(len(s.events))*slowHandler
}

func (s *session) sendCork() {
	s.txMu.Lock()
	s.uncork()
	s.txMu.Unlock()
}
