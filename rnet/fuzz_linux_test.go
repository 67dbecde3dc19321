package rnet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// FuzzParseHello reads any private data: what is accepted is in range, and
// says the same when it is written again.
func FuzzParseHello(f *testing.F) {
	good := hello{minVersion: 2, maxVersion: 2, sessionWindow: 1 << 20, link: link.Params{RingAddr: 1 << 40, RingKey: 9, RingSize: 1 << 20, Slots: 2048}, window: 1 << 19, streams: 1 << 20, pid: 1, token: 2}
	f.Add(good.marshal())
	f.Add(append(good.marshal(), 0, 0, 0, 0, 0, 0, 0, 0))
	good.link.RingSize++
	f.Add(good.marshal())
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			require.True(t, errors.Is(err, errHello) || errors.Is(err, errVersion), "%v", err)
			return
		}
		require.NoError(t, new(ring.Tx).Init(h.link.RingSize))
		require.NoError(t, new(ring.SendSlots).Init(int(h.link.Slots)))
		require.NoError(t, new(ring.SendWindow).Init(h.window))
		require.LessOrEqual(t, h.streams, uint32(maxStreams))
		again, err := parseHello(h.marshal())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

// FuzzFrames gives a listening session whatever frames a peer may send. Either it takes
// them, and its accounts stay in order, or it calls the peer a liar; it does not panic.
func FuzzFrames(f *testing.F) {
	open := frame(frameOpen, 1, 0, []byte("first data"))
	data := frame(frameData, 1, flagCounted, make([]byte, 5000))
	window := frame(frameWindow, 1, 0, []byte{0, 0, 16, 0, 0, 0, 0, 0})
	f.Add(message(open))
	f.Add(message(open, data, window))
	f.Add(message(open, open))
	f.Add(message(open, data, window, data))
	f.Add(message(open, frame(frameFin, 1, flagClosed, nil), data))
	f.Add(message(open, frame(frameReset, 1, 0, nil), open))
	f.Add(message(frame(frameGoAway, 0, 0, nil), frame(framePing, 0, 0, nil)))
	f.Add(frame(frameOpen, 0xffffffff, 0, nil))
	dev, err := acquireDevice("soft0") // opening it for each input would take most of the time
	require.NoError(f, err)
	f.Cleanup(dev.release)
	f.Fuzz(func(t *testing.T, script []byte) {
		m := loneMux(t)
		defer m.Abandon()
		for len(script) >= frameHeaderLen {
			h := link.Header{Stream: binary.LittleEndian.Uint32(script), Kind: script[4], Flags: script[5]}
			n := min(int(binary.LittleEndian.Uint16(script[8:])), len(script)-frameHeaderLen, keepMin-1) // a longer one would stay in the ring
			payload := script[frameHeaderLen : frameHeaderLen+n : frameHeaderLen+n]
			script = script[min(len(script), (frameHeaderLen+n+frameAlign-1)&^(frameAlign-1)):]
			if err := m.takes(h, payload); err != nil {
				require.True(t, errors.Is(err, errProtocol), "%v", err)
				return
			}
		}
	})
}

// picky is the user of a listening mux without a peer. It refuses some streams.
type picky struct{}

func (picky) Accept(st *stream) bool { return st.id%5 != 4 }
func (picky) Take(want, _ int) (netip.AddrPort, int) {
	return netip.MustParseAddrPort("127.0.0.1:1024"), want
}
func (picky) Give([]slotAddrs) {}

func (picky) Served()      {}
func (picky) Leaving()     {}
func (picky) Failed(error) {}
func (picky) Ended()       {}

// loneMux is a listening mux without a peer: what it would send is dropped. It must be
// abandoned.
func loneMux(t testing.TB) *mux {
	m := newMux(muxConfig{muxSizes: muxSizes{Window: 16 << 10, Streams: 64, SessionWindow: minSessionWindow}, Profile: fallback.Efficient}, picky{})
	dev, err := acquireDevice("soft0")
	require.NoError(t, err)
	l, err := link.New(link.Config{Device: dev.ctx, Release: dev.release, RingSize: minRingSize, Slots: link.DefaultSlots, Send: m.SendLock()}, m)
	require.NoError(t, err)
	m.Use(l)
	peer := hello{minVersion: 2, maxVersion: 2, sessionWindow: minSessionWindow, link: link.Params{RingSize: minRingSize, Slots: link.MinSlots}, window: minWindow, streams: 64}
	require.NoError(t, m.Learn(peer.marshal()))
	l.Stop()
	m.giveAddrs()
	return m
}

// takes is what poll does for one frame of a peer, and then what readers may find.
func (m *mux) takes(h link.Header, payload []byte) error {
	if err := m.Frame(h, payload); err != nil {
		return err
	}
	m.settleAtOnce()
	streams := m.streams.list()
	if len(streams) > m.streams.limit {
		panic("more streams than the limit")
	}
	held := 0
	for _, st := range streams {
		st.recv.mu.Lock()
		unread := 0
		for k := st.recv.queue.head; k != nil; k = k.next {
			unread += len(k.unread())
		}
		if unread > int(m.cfg.Window) {
			panic("a stream holds more than its window")
		}
		held += unread
		st.recv.mu.Unlock()
	}
	if held > int(m.cfg.SessionWindow)+len(streams)*streamMinimum {
		panic("a session holds more than its window")
	}
	return nil
}
