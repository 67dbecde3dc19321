package mux

import (
	"encoding/binary"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// controls are the control frames that are to be sent. Those of a stream, and most of the
// session's, are idempotent bits: queueing needs no memory, and the queue cannot grow beyond
// the streams. The send lock guards all of it.
type controls struct {
	link     *link.Link
	received *receiverShare

	streams  waitQueue   // with frames to send
	session  uint8       // say* bits
	refusals []uint32    // streams that the peer opened and we do not take, to be reset
	addrs    []SlotAddrs // addresses that the peer was not told yet
	over     bool        // sayLast was queued: no OPEN may be any more

	local bool // the peer is in this process

	frame   controlFrame // that is sent
	payload [AddrsLen]byte
	lastFin link.Mark // of the last end of a stream
	windows uint64    // WINDOW frames that were sent
}

// The control frames that a stream can have queued.
const (
	ctlOpen uint8 = 1 << iota
	ctlWindow
	ctlFin   // of CloseWrite
	ctlClose // the FIN of Close
	ctlReset
	ctlBlocked
	ctlShare // the session window, on behalf of a stream
)

// The control frames of the session.
const (
	sayAway uint8 = 1 << iota
	sayPing
	sayShare
	sayLast // the answer to the peer's GO_AWAY
)

// control queues control frames of the stream and sends what can be sent.
func (st *Stream) control(bits uint8) {
	if bits == 0 {
		return
	}
	out := &st.m.out
	out.mu.Lock()
	if bits&ctlShare != 0 {
		out.control.session |= sayShare
	}
	out.control.push(&st.send, bits&^ctlShare)
	out.flushControl()
	out.mu.Unlock()
}

// sayOpen queues the OPEN of a stream. It reports false if the peer was told that there are no
// more.
func (st *Stream) sayOpen() bool {
	out := &st.m.out
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.control.over {
		return false
	}
	out.control.push(&st.send, ctlOpen)
	out.flushControl()
	return true
}

// forgetControl takes back what was to be said about the stream: the peer has ended
// it.
func (st *Stream) forgetControl() {
	out := &st.m.out
	out.mu.Lock()
	out.control.drop(&st.send)
	out.mu.Unlock()
}

// say queues control frames of the session; sayLast once only, after what was opened before.
func (s *sender) say(bits uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control.over {
		bits &^= sayLast
	}
	s.control.over = s.control.over || bits&sayLast != 0
	s.control.session |= bits
	s.flushControl()
}

// sayAddrs queues the addresses of more slots.
func (s *sender) sayAddrs(r SlotAddrs) {
	s.mu.Lock()
	s.control.addrs = append(s.control.addrs, r)
	s.flushControl()
	s.mu.Unlock()
}

// maxRefusals bounds what a peer that opens too many streams, and takes no
// answer, can make us remember.
const maxRefusals = 1024

// refuse queues a reset for a stream that was not taken. An error means that
// the peer has too many of them.
func (s *sender) refuse(id uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.control.refusals); n >= maxRefusals {
		return fmt.Errorf("%w: %d streams opened beyond the limit, and no answer taken", ErrProtocol, n)
	}
	s.control.refusals = append(s.control.refusals, id)
	s.flushControl()
	return nil
}

// flushControl sends queued control frames as far as there is room, and
// reports whether all are gone. mu is held.
func (s *sender) flushControl() bool {
	for !s.control.empty() {
		if s.link.Stopped() {
			return false
		}
		least := finLen
		if len(s.control.addrs) > 0 {
			least = AddrsLen
		}
		if s.link.Room(least) < least {
			s.blocked.Store(true)
			if s.link.Room(least) < least { // see blocked
				s.control.sweepSoon()
				return false
			}
		}
		if err := s.control.sendNext(); err != nil {
			s.controlFailed(err)
			return false
		}
	}
	return true
}

// unsaid reports whether there are control frames that may yet be sent.
func (s *sender) unsaid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.control.empty() && !s.link.Stopped()
}

func (s *sender) controlFailed(err error) {
	go s.mux.Fail(fmt.Errorf("rnet: send control frame: %w", err))
}

// controlFrame is a frame to be sent.
type controlFrame struct {
	h       link.Header
	payload []byte
	ends    *Stream // that it ends, or a half of it
	bits    uint32  // which, as end* bits
}

// push queues control frames of a stream.
func (c *controls) push(w *sendHalf, bits uint8) {
	if bits != 0 {
		w.ctl |= bits
		c.streams.push(w, ctlLink)
	}
}

// drop takes back what was queued of a stream.
func (c *controls) drop(w *sendHalf) {
	w.ctl = 0
	c.streams.remove(w, ctlLink)
}

func (c *controls) empty() bool {
	return c.session == 0 && c.streams.empty() && len(c.addrs) == 0 && len(c.refusals) == 0
}

// take takes a bit of the session, and reports whether it was there.
func (c *controls) take(bit uint8) bool {
	was := c.session
	c.session &^= bit
	return was&bit != 0
}

// sendNext sends the next frame.
func (c *controls) sendNext() error {
	f := &c.frame
	if *f = (controlFrame{}); !c.next(f) {
		return nil
	}
	st := f.ends
	if st == nil {
		err := c.link.Send(f.h, f.payload)
		if f.h.Kind != FrameWindow && f.h.Kind != FrameSessionWindow {
			c.sweepSoon()
		}
		return err
	}
	// The end is noted before it is sent: the peer may answer, and use the id again, at once.
	// But the session may end with its last stream only after that.
	last := st.note(f.bits)
	c.link.Track()
	err := c.link.Send(f.h, f.payload)
	if err == nil {
		c.lastFin, err = c.link.Tracked()
	}
	c.sweepSoon()
	st.send.endSent(c.lastFin, f.bits)
	f.ends = nil
	if last && st.m.left() && st.m.streams.shutIfEmpty() {
		st.m.Fail(ErrIdle) // as expire, which takes the send lock
	}
	return err
}

// sweepSoon is called when the peer is to learn of something, and may have nobody who waits: a frame that
// was sent, or that what is to be sent needs credit. A peer in this process is looked after rarely.
func (c *controls) sweepSoon() {
	if c.local {
		wait.SweepSoon()
	}
}

// next takes the next frame off the queue. There may be none after all.
func (c *controls) next(f *controlFrame) bool {
	switch {
	case len(c.addrs) > 0:
		c.addrs[0].Put(&c.payload)
		c.addrs = c.addrs[1:]
		f.h.Kind, f.payload = FrameAddrs, c.payload[:]
	case c.take(sayAway):
		f.h.Kind = FrameGoAway
	case c.take(sayPing):
		f.h.Kind = FramePing
	case c.take(sayShare):
		if limit, news := c.received.tell(); news {
			f.h.Kind, f.payload = FrameSessionWindow, c.position(limit)
		}
	case len(c.refusals) > 0:
		f.h = link.Header{Stream: c.refusals[0], Kind: FrameReset}
		c.refusals = c.refusals[1:]
	case !c.streams.empty():
		c.nextOf(c.streams.first(), f)
	default: // sayLast
		c.session = 0
		f.h.Kind = FrameGoAway
	}
	return f.h.Kind != 0
}

// position returns the payload of a WINDOW or SESSION_WINDOW frame, or of the FIN of CloseWrite.
func (c *controls) position(at uint64) []byte {
	return binary.LittleEndian.AppendUint64(c.payload[:0], at)
}

// nextOf is next for a frame of a stream, which it takes off the queue when that was the last. The
// order is that of a stream's life.
func (c *controls) nextOf(w *sendHalf, f *controlFrame) {
	st := w.st
	f.h.Stream = st.id
	switch over := st.ended(); {
	case w.ctl&ctlOpen != 0:
		w.ctl &^= ctlOpen
		f.h.Kind = FrameOpen
	case over:
		w.ctl = 0
	case w.ctl&ctlReset != 0:
		w.ctl = 0
		f.h.Kind, f.ends, f.bits = FrameReset, st, endReset
	case w.ctl&ctlWindow != 0:
		w.ctl &^= ctlWindow
		c.windows++
		f.h.Kind, f.payload = FrameWindow, c.position(st.recv.takeUpdate())
	case w.ctl&ctlBlocked != 0:
		w.ctl &^= ctlBlocked
		f.h.Kind = FrameBlocked
	case w.ctl&ctlClose != 0: // says all that ctlFin would
		w.ctl = 0
		f.h.Kind, f.h.Flags, f.payload = FrameFin, FlagClosed, binary.LittleEndian.AppendUint64(c.position(w.window.Sent()), w.readTo)
		f.ends, f.bits = st, endFinSent|endClosed
	case w.ctl&ctlFin != 0:
		w.ctl &^= ctlFin
		if st.ends.Load()&endFinSent == 0 {
			f.h.Kind, f.payload = FrameFin, c.position(w.window.Sent())
			f.ends, f.bits = st, endFinSent
		}
	}
	if w.ctl == 0 {
		c.streams.remove(w, ctlLink)
	}
}

// endSent notes where the frame stands that has ended the half. The send lock is held.
func (w *sendHalf) endSent(at link.Mark, bits uint32) {
	w.finAt = at
	if bits&endClosed != 0 {
		w.wake() // a lingering Close
	}
}
