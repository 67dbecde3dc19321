package mux

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// FuzzParseHello reads any private data: what is accepted is in range, and
// says the same when it is written again.
func FuzzParseHello(f *testing.F) {
	good := Hello{MinVersion: protocolVersion, MaxVersion: protocolVersion, SessionWindow: 1 << 20, Link: link.Params{RingAddr: 1 << 40, RingKey: 9, RingSize: 1 << 20, Slots: 2048}, Window: 1 << 19, Streams: 1 << 20, PID: 1, Token: 2}
	f.Add(good.Marshal())
	f.Add(append(good.Marshal(), 0, 0, 0, 0, 0, 0, 0, 0))
	good.Link.RingSize++
	f.Add(good.Marshal())
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err != nil {
			require.True(t, errors.Is(err, ErrHello) || errors.Is(err, ErrVersion), "%v", err)
			return
		}
		require.NoError(t, new(ring.Tx).Init(h.Link.RingSize))
		require.NoError(t, new(ring.SendSlots).Init(int(h.Link.Slots)))
		require.NoError(t, new(ring.SendWindow).Init(h.Window))
		require.LessOrEqual(t, h.Streams, uint32(MaxStreams))
		again, err := ParseHello(h.Marshal())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

// FuzzFrames gives a listening session whatever frames a peer may send. Either it takes
// them, and its accounts stay in order, or it calls the peer a liar; it does not panic.
func FuzzFrames(f *testing.F) {
	open := frame(FrameOpen, 1, 0, []byte("first data"))
	data := frame(FrameData, 1, FlagCounted, make([]byte, 5000))
	window := frame(FrameWindow, 1, 0, []byte{0, 0, 16, 0, 0, 0, 0, 0})
	f.Add(message(open))
	f.Add(message(open, data, window))
	f.Add(message(open, open))
	f.Add(message(open, data, window, data))
	fin := frame(FrameFin, 1, 0, position(10))
	closed := frame(FrameFin, 1, FlagClosed, position(10, 0))
	f.Add(message(open, closed, data))
	f.Add(message(open, fin, closed))
	f.Add(message(open, fin, data))
	f.Add(message(open, data, closed))
	f.Add(message(open, frame(FrameFin, 1, FlagClosed, nil)))
	f.Add(message(open, frame(FrameFin, 1, FlagClosed, position(10, 1))))
	f.Add(message(open, frame(FrameReset, 1, 0, nil), open))
	f.Add(message(frame(FrameGoAway, 0, 0, nil), frame(FramePing, 0, 0, nil)))
	f.Add(frame(FrameOpen, 0xffffffff, 0, nil))
	dev, err := verbs.Open(soft.DeviceName) // opening it for each input would take most of the time
	require.NoError(f, err)
	f.Cleanup(func() { dev.Close() })
	f.Fuzz(func(t *testing.T, script []byte) {
		m := loneMux(t, dev)
		defer m.Abandon()
		for len(script) >= link.HeaderLen {
			h := link.Header{Stream: binary.LittleEndian.Uint32(script), Kind: script[4], Flags: script[5]}
			// a longer one would stay in the ring
			n := min(int(binary.LittleEndian.Uint16(script[8:])), len(script)-link.HeaderLen, keepMin-1)
			payload := script[link.HeaderLen : link.HeaderLen+n : link.HeaderLen+n]
			script = script[min(len(script), (link.HeaderLen+n+link.Align-1)&^(link.Align-1)):]
			if err := takes(m, h, payload); err != nil {
				require.True(t, errors.Is(err, ErrProtocol), "%v", err)
				return
			}
		}
	})
}

// picky is the user of a listening mux without a peer. It refuses some streams.
type picky struct{}

func (picky) Incoming() Incoming { return new(perhaps) }
func (picky) Take(want, _ int) (netip.AddrPort, int) {
	return netip.MustParseAddrPort("127.0.0.1:1024"), want
}
func (picky) Give([]SlotAddrs) {}

func (picky) Served()      {}
func (picky) Leaving()     {}
func (picky) Failed(error) {}
func (picky) Ended()       {}

// perhaps is a stream of picky.
type perhaps struct{ st Stream }

func (p *perhaps) Stream() *Stream { return &p.st }
func (p *perhaps) Accept() bool    { return p.st.id%5 != 4 }

// loneMux is a listening mux without a peer: what it would send is dropped. It must be
// abandoned.
func loneMux(t testing.TB, dev *verbs.Context) *Mux {
	m := New(Config{Sizes: Sizes{Window: 16 << 10, Streams: 64, SessionWindow: MinSessionWindow}, Profile: fallback.Efficient}, picky{})
	l, err := link.New(link.Config{Device: dev, Release: func() {}, RingSize: link.MinRing, Slots: link.DefaultSlots, Send: m.SendLock()}, m)
	require.NoError(t, err)
	m.Use(l)
	peer := Hello{MinVersion: protocolVersion, MaxVersion: protocolVersion, SessionWindow: MinSessionWindow, Link: link.Params{RingSize: link.MinRing, Slots: link.MinSlots}, Window: MinWindow, Streams: 64}
	require.NoError(t, m.Learn(peer.Marshal()))
	l.Stop()
	m.giveAddrs()
	return m
}

// takes is what poll does for one frame of a peer, and then what readers may find.
func takes(m *Mux, h link.Header, payload []byte) error {
	if err := m.Frame(h, payload); err != nil {
		return err
	}
	if m.share.settle(m.share.size / 8) {
		m.out.say(sayShare)
	}
	streams := m.streams.list()
	if len(streams) > m.streams.limit {
		panic("more streams than the limit")
	}
	held := 0
	for _, st := range streams {
		st.recv.mu.Lock()
		unread := 0
		for k := st.recv.queue.head; k != nil; k = k.next {
			unread += len(k.Unread())
		}
		if unread > int(m.cfg.Window) {
			panic("a stream holds more than its window")
		}
		held += unread
		st.recv.mu.Unlock()
	}
	if held > int(m.cfg.SessionWindow)+len(streams)*StreamMinimum {
		panic("a session holds more than its window")
	}
	return nil
}

// frame returns the bytes of one frame.
func frame(kind uint8, stream uint32, flags uint8, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, stream)
	b = append(b, kind, flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	return append(b, payload...)
}

// position returns the payload of a frame that tells positions.
func position(at ...uint64) (p []byte) {
	for _, x := range at {
		p = binary.LittleEndian.AppendUint64(p, x)
	}
	return p
}

// message puts frames together.
func message(frames ...[]byte) (b []byte) {
	for _, f := range frames {
		b = append(b, make([]byte, -len(b)&(link.Align-1))...)
		b = append(b, f...)
	}
	return b
}
