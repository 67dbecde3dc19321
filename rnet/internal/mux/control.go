package mux

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

// control queues control frames of the stream and sends what can be sent.
func (st *Stream) control(bits uint8) {
	m := st.m
	m.txMu.Lock()
	m.ctlShare = m.ctlShare || bits&ctlShare != 0
	if bits &^= ctlShare; bits != 0 {
		st.send.ctl |= bits
		m.ctlQueue.push(&st.send, ctlLink)
	}
	m.flushControl()
	m.txMu.Unlock()
}

// sayOpen queues the OPEN of a stream. It reports false if the peer was told that there are no
// more.
func (st *Stream) sayOpen() bool {
	m := st.m
	m.txMu.Lock()
	defer m.txMu.Unlock()
	if m.last {
		return false
	}
	st.send.ctl |= ctlOpen
	m.ctlQueue.push(&st.send, ctlLink)
	m.flushControl()
	return true
}

// sayLast answers the peer's GO_AWAY, once: what was opened before comes before it.
func (m *Mux) sayLast() {
	m.txMu.Lock()
	defer m.txMu.Unlock()
	if m.last {
		return
	}
	m.last, m.ctlLast = true, true
	m.flushControl()
}

// forgetControl takes back what was to be said about the stream: the peer has ended
// it.
func (st *Stream) forgetControl() {
	m := st.m
	m.txMu.Lock()
	st.send.ctl = 0
	m.ctlQueue.remove(&st.send, ctlLink)
	m.txMu.Unlock()
}

// maxRefusals bounds what a peer that opens too many streams, and takes no
// answer, can make us remember.
const maxRefusals = 1024

// refuse queues a reset for a stream that was not taken. An error means that
// the peer has too many of them.
func (m *Mux) refuse(id uint32) error {
	m.txMu.Lock()
	defer m.txMu.Unlock()
	if len(m.refusals) >= maxRefusals {
		return fmt.Errorf("%w: %d streams opened beyond the limit, and no answer taken", ErrProtocol, len(m.refusals))
	}
	m.refusals = append(m.refusals, id)
	m.flushControl()
	return nil
}

// sessionControl queues a ping or a go-away.
func (m *Mux) sessionControl(ping, away bool) {
	m.txMu.Lock()
	m.ctlPing = m.ctlPing || ping
	m.ctlAway = m.ctlAway || away
	m.flushControl()
	m.txMu.Unlock()
}

// flushControl sends queued control frames as far as there is room, and
// reports whether all are gone. txMu is held.
func (m *Mux) flushControl() bool {
	for m.ctlAway || m.ctlPing || m.ctlShare || m.ctlLast || len(m.ctlAddrs) > 0 || len(m.refusals) > 0 || !m.ctlQueue.empty() {
		if m.link.Stopped() {
			return false
		}
		least := 8
		if len(m.ctlAddrs) > 0 {
			least = AddrsLen
		}
		if m.link.Room(least) < least {
			m.txBlocked.Store(true)
			if m.link.Room(least) < least { // see txBlocked
				return false
			}
		}
		var err error
		switch {
		case len(m.ctlAddrs) > 0:
			err = m.postAddrs()
		case m.ctlAway:
			m.ctlAway = false
			err = m.link.Send(link.Header{Kind: FrameGoAway}, nil)
		case m.ctlPing:
			m.ctlPing = false
			err = m.link.Send(link.Header{Kind: FramePing}, nil)
		case m.ctlShare:
			m.ctlShare = false
			err = m.postShare()
		case len(m.refusals) > 0:
			id := m.refusals[0]
			m.refusals = m.refusals[1:]
			err = m.link.Send(link.Header{Stream: id, Kind: FrameReset}, nil)
		case !m.ctlQueue.empty():
			err = m.postControl(m.ctlQueue.first())
		default:
			m.ctlLast = false
			err = m.link.Send(link.Header{Kind: FrameGoAway}, nil)
		}
		if err != nil {
			go m.Fail(fmt.Errorf("rnet: send control frame: %w", err))
			return false
		}
	}
	return true
}

// postControl sends one control frame of a stream and takes it off the queue when it
// was the last. The order is that of a stream's life.
func (m *Mux) postControl(w *sendHalf) (err error) {
	st := w.st
	h := link.Header{Stream: st.id}
	switch {
	case w.ctl&ctlOpen != 0:
		w.ctl &^= ctlOpen
		h.Kind = FrameOpen
		err = m.link.Send(h, nil)
	case w.ctl&ctlReset != 0:
		w.ctl = 0
		if !st.ended() {
			h.Kind = FrameReset
			err = m.postEnd(st, h, endReset)
		}
	case w.ctl&ctlWindow != 0:
		w.ctl &^= ctlWindow
		if !st.ended() {
			h.Kind = FrameWindow
			m.stats.windowsSent.Add(1)
			err = m.link.Send(h, st.recv.takeUpdate())
		}
	case w.ctl&ctlBlocked != 0:
		w.ctl &^= ctlBlocked
		if !st.ended() {
			h.Kind = FrameBlocked
			err = m.link.Send(h, nil)
		}
	case w.ctl&ctlFin != 0:
		w.ctl &^= ctlFin
		bits := endFinSent
		h.Kind = FrameFin
		if st.closed.Load() {
			bits |= endCloseSent
			h.Flags = FlagClosed
		}
		if !st.ended() && st.ends.Load()&bits != bits { // a Close after CloseWrite has more to say
			err = m.postEnd(st, h, bits)
		}
	}
	if w.ctl == 0 {
		m.ctlQueue.remove(w, ctlLink)
	}
	return err
}

// postEnd sends a frame that ends st. The end is noted before it is posted: the
// peer may answer, and use the id again, at once. But the session may end with
// its last stream only after that.
func (m *Mux) postEnd(st *Stream, h link.Header, bits uint32) error {
	last := st.note(bits)
	mark, err := m.link.SendMarked(h, nil)
	if err == nil {
		m.lastFin = mark
	}
	st.send.finAt = m.lastFin
	if bits&endCloseSent != 0 {
		st.send.wake() // a lingering Close
	}
	if last {
		m.Left()
	}
	return err
}
