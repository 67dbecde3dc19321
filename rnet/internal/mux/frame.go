package mux

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/internal/release"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// The kinds of frames (docs/protocol.md, section 3).
const (
	FrameOpen   uint8 = 1 // opens the stream; payload is its first data
	FrameAccept uint8 = 2 // reserved: an opener never waits for an answer
	FrameData   uint8 = 3
	FrameWindow uint8 = 4 // payload: u64, absolute position up to which the peer may send
	FrameFin    uint8 = 5 // no more data follows; payload: u64, how much was sent; with FlagClosed another, up to where the sender has read
	FrameReset  uint8 = 6 // the stream is gone, both ways
	FramePing   uint8 = 7 // keeps the session alive; the transport acknowledges it
	FrameGoAway uint8 = 8 // open no more streams on this session
	FrameAddrs  uint8 = 9 // slots that may be used, and their addresses; slots.go

	FrameSessionWindow uint8 = 10 // payload: u64, absolute position up to which the peer may send what counts
	FrameBlocked       uint8 = 11 // the stream has data for which there is neither session window nor minimum
)

// FlagClosed on a FIN says that the sender will not read any more either.
const FlagClosed uint8 = 1 << 0

// finLen is the length of the payload of a FIN with FlagClosed.
const finLen = 16

// FlagCounted on OPEN or DATA says that the payload counts in the session window.
const FlagCounted uint8 = 1 << 0

// ErrProtocol says that the peer has broken the protocol.
var ErrProtocol = link.ErrProtocol

// arrived counts what has come. The poll lock guards it, but for bytes.
type arrived struct {
	sum   uint64        // payload bytes of streams
	bytes atomic.Uint64 // the same, for goroutines without the lock
}

// poll takes in what has arrived, one batch. The caller owns the poll lock. It returns
// how many completions there were; after a failure of the session it goes on to drain
// the link.
func (m *Mux) poll() int {
	var b link.Batch
	if m.onLoop() {
		b = m.link.Collect(m.loop.batch)
	} else {
		b = m.link.Poll()
	}
	if b.Completions > 0 || m.share.freedAtOnce > 0 && m.share.starving.Load() > 0 {
		if m.share.settle(m.share.size / 8) {
			m.out.say(sayShare)
		}
		if m.arrived.sum != m.arrived.bytes.Load() {
			release.Store(&m.arrived.bytes, m.arrived.sum)
		}
	}
	if b.Err != nil {
		m.Fail(b.Err)
		return b.Completions
	}
	if b.Credit {
		if m.out.blocked.Load() {
			m.out.creditCame()
		}
		if m.sent.blocked.Load() {
			m.sent.wake()
		}
	}
	return b.Completions
}

// Frame takes a frame from the link, with its receive lock held. An error ends the
// session.
func (m *Mux) Frame(h link.Header, payload []byte) error {
	if h.Kind == FrameData {
		if st := m.streams.get(h.Stream); st != nil {
			m.arrived.sum += uint64(len(payload))
			return st.recv.deliver(payload, h.Flags&FlagCounted != 0)
		}
		if h.Flags&FlagCounted != 0 {
			if err := m.share.arrive(len(payload)); err != nil {
				return err
			}
		}
		return m.checkLate(h.Stream)
	}
	return m.controlFrame(h, payload)
}

// checkLate checks that a frame of a stream that is not in the table is late. One that came
// before the OPEN would be lost without a word.
func (m *Mux) checkLate(id uint32) error {
	if m.cfg.Dialed || m.streams.wasOpened(id) {
		return nil
	}
	return fmt.Errorf("%w: a frame of stream %#x, which was not opened", ErrProtocol, id)
}

func (m *Mux) controlFrame(h link.Header, payload []byte) error {
	switch h.Kind {
	case FrameOpen:
		return m.peerOpened(h.Stream, payload, h.Flags&FlagCounted != 0)
	case FrameWindow, FrameFin, FrameReset, FrameBlocked:
		return m.streamFrame(h, payload)
	case FramePing:
	case FrameSessionWindow:
		return m.out.shareGranted(payload)
	case FrameGoAway:
		m.PeerLeaves()
	case FrameAddrs:
		if !m.cfg.Dialed {
			return fmt.Errorf("%w: ADDRS of a side that has none to give", ErrProtocol)
		}
		return m.addrs.learn(payload, &m.streams)
	default:
		return fmt.Errorf("%w: frame of kind %d", ErrProtocol, h.Kind)
	}
	return nil
}

func (m *Mux) streamFrame(h link.Header, payload []byte) error {
	st := m.streams.get(h.Stream)
	if st == nil {
		if err := m.checkLate(h.Stream); err != nil {
			return err
		}
	}
	switch h.Kind {
	case FrameWindow:
		limit, err := parsePosition(payload)
		if err != nil {
			return err
		}
		if st != nil {
			st.send.grant(limit)
		}
	case FrameFin:
		return m.peerFinished(st, payload, h.Flags&FlagClosed != 0)
	case FrameReset:
		if st != nil {
			st.reset()
		}
	case FrameBlocked:
		if st != nil {
			st.recv.blocked() // first: see receiverShare.starving
		}
		m.share.settle(0)
		m.out.say(sayShare)
	}
	return nil
}

// peerFinished takes a FIN. st is nil if the stream is gone.
func (m *Mux) peerFinished(st *Stream, payload []byte, closedToo bool) error {
	sent, read, err := parseFin(payload, closedToo)
	if err != nil || st == nil {
		return err
	}
	if err := st.recv.complete(sent); err != nil {
		return err
	}
	if closedToo {
		return st.peerClosed(read)
	}
	st.finished()
	return nil
}

// parseFin reads the payload of a FIN.
func parseFin(payload []byte, closed bool) (sent, read uint64, err error) {
	if !closed {
		sent, err = parsePosition(payload)
		return sent, 0, err
	}
	if len(payload) != finLen {
		return 0, 0, fmt.Errorf("%w: FIN of a Close with %d bytes", ErrProtocol, len(payload))
	}
	return binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(payload[8:]), nil
}

// peerOpened makes the stream that the peer opens.
func (m *Mux) peerOpened(id uint32, payload []byte, counted bool) error {
	if m.cfg.Dialed {
		return fmt.Errorf("%w: the listening side opens a stream", ErrProtocol)
	}
	var st *Stream
	var in Incoming
	if m.onLoop() {
		st = new(Stream)
	} else {
		in = m.user.Incoming()
		st = in.Stream()
	}
	st.init(m)
	st.id = id
	if !m.streams.insert(st) {
		if m.streams.get(id) != nil {
			return fmt.Errorf("%w: stream %#x opened twice", ErrProtocol, id)
		}
		if counted {
			if err := m.share.arrive(len(payload)); err != nil {
				return err
			}
		}
		return m.out.refuse(id)
	}
	m.giveAddrs()
	refused := in == nil && !st.acceptLoop()
	if len(payload) > 0 {
		if err := st.recv.deliver(payload, counted); err != nil {
			return err
		}
	}
	if refused || in != nil && !in.Accept() {
		st.refuse()
	}
	return nil
}
