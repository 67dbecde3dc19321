package mux

import (
	"encoding/binary"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
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

	payload [AddrsLen]byte // of the frame that is sent
	lastFin link.Mark      // of the last end of a stream
	windows uint64         // WINDOW frames that were sent
}

// The control frames that a stream can have queued.
const (
	ctlOpen uint8 = 1 << iota
	ctlWindow
	ctlFin   // of CloseWrite, or the answer to the peer's Close
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
	st.send.ctl = 0
	out.control.streams.remove(&st.send, ctlLink)
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
		least := 8
		if len(s.control.addrs) > 0 {
			least = AddrsLen
		}
		if s.link.Room(least) < least {
			s.blocked.Store(true)
			if s.link.Room(least) < least { // see blocked
				return false
			}
		}
		if err := s.control.post(); err != nil {
			go s.mux.Fail(fmt.Errorf("rnet: send control frame: %w", err))
			return false
		}
	}
	return true
}

// push queues control frames of a stream.
func (c *controls) push(w *sendHalf, bits uint8) {
	if bits != 0 {
		w.ctl |= bits
		c.streams.push(w, ctlLink)
	}
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

// post sends the next frame.
func (c *controls) post() error {
	switch {
	case len(c.addrs) > 0:
		c.addrs[0].Put(&c.payload)
		c.addrs = c.addrs[1:]
		return c.link.Send(link.Header{Kind: FrameAddrs}, c.payload[:])
	case c.take(sayAway):
		return c.link.Send(link.Header{Kind: FrameGoAway}, nil)
	case c.take(sayPing):
		return c.link.Send(link.Header{Kind: FramePing}, nil)
	case c.take(sayShare):
		limit, news := c.received.tell()
		if !news {
			return nil
		}
		return c.link.Send(link.Header{Kind: FrameSessionWindow}, c.position(limit))
	case len(c.refusals) > 0:
		id := c.refusals[0]
		c.refusals = c.refusals[1:]
		return c.link.Send(link.Header{Stream: id, Kind: FrameReset}, nil)
	case !c.streams.empty():
		return c.postStream(c.streams.first())
	}
	c.session = 0
	return c.link.Send(link.Header{Kind: FrameGoAway}, nil)
}

// position returns the payload of a WINDOW or SESSION_WINDOW frame.
func (c *controls) position(limit uint64) []byte {
	return binary.LittleEndian.AppendUint64(c.payload[:0], limit)
}

// postStream sends one control frame of a stream and takes it off the queue when it
// was the last. The order is that of a stream's life.
func (c *controls) postStream(w *sendHalf) (err error) {
	st := w.st
	h := link.Header{Stream: st.id}
	switch {
	case w.ctl&ctlOpen != 0:
		w.ctl &^= ctlOpen
		h.Kind = FrameOpen
		err = c.link.Send(h, nil)
	case w.ctl&ctlReset != 0:
		w.ctl = 0
		if !st.ended() {
			h.Kind = FrameReset
			err = c.postEnd(st, h, nil, endReset)
		}
	case w.ctl&ctlWindow != 0:
		w.ctl &^= ctlWindow
		if !st.ended() {
			h.Kind = FrameWindow
			c.windows++
			err = c.link.Send(h, c.position(st.recv.takeUpdate()))
		}
	case w.ctl&ctlBlocked != 0:
		w.ctl &^= ctlBlocked
		if !st.ended() {
			h.Kind = FrameBlocked
			err = c.link.Send(h, nil)
		}
	case w.ctl&ctlClose != 0: // says all that ctlFin would
		w.ctl &^= ctlClose | ctlFin
		if !st.ended() && st.ends.Load()&endCloseSent == 0 {
			h.Kind, h.Flags = FrameFin, FlagClosed
			err = c.postEnd(st, h, c.position(st.recv.readTo()), endFinSent|endCloseSent)
		}
	case w.ctl&ctlFin != 0:
		w.ctl &^= ctlFin
		if !st.ended() && st.ends.Load()&endFinSent == 0 {
			h.Kind = FrameFin
			err = c.postEnd(st, h, nil, endFinSent)
		}
	}
	if w.ctl == 0 {
		c.streams.remove(w, ctlLink)
	}
	return err
}

// postEnd sends a frame that ends st. The end is noted before it is posted: the
// peer may answer, and use the id again, at once. But the session may end with
// its last stream only after that.
func (c *controls) postEnd(st *Stream, h link.Header, payload []byte, bits uint32) error {
	last := st.note(bits)
	mark, err := c.link.SendMarked(h, payload)
	if err == nil {
		c.lastFin = mark
	}
	st.send.finAt = c.lastFin
	if bits&endCloseSent != 0 {
		st.send.wake() // a lingering Close
	}
	if last {
		st.m.Left()
	}
	return err
}
