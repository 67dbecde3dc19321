package rnet

import (
	"encoding/binary"
	"errors"
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
		s := loneSession(t)
		defer s.abandon()
		for len(script) >= frameHeaderLen {
			h := link.Header{Stream: binary.LittleEndian.Uint32(script), Kind: script[4], Flags: script[5]}
			n := min(int(binary.LittleEndian.Uint16(script[8:])), len(script)-frameHeaderLen, keepMin-1) // a longer one would stay in the ring
			payload := script[frameHeaderLen : frameHeaderLen+n : frameHeaderLen+n]
			script = script[min(len(script), (frameHeaderLen+n+frameAlign-1)&^(frameAlign-1)):]
			if err := s.takes(h, payload); err != nil {
				require.True(t, errors.Is(err, errProtocol), "%v", err)
				return
			}
		}
	})
}

// loneSession is a listening session without a peer: what it would send is
// dropped.
func loneSession(t testing.TB) *session {
	cfg := sessionConfig{ringSize: minRingSize, window: 16 << 10, maxStreams: 64, sessionWindow: minSessionWindow, profile: fallback.Efficient}
	s, err := newSession("soft0", cfg, noLog)
	require.NoError(t, err)
	peer := hello{minVersion: 2, maxVersion: 2, sessionWindow: minSessionWindow, link: link.Params{RingSize: minRingSize, Slots: link.MinSlots}, window: minWindow, streams: 64}
	require.NoError(t, s.learn(peer.marshal()))
	s.accept = func(c *Conn) bool { return c.id%5 != 4 } // some are refused
	s.link.Stop()
	return s
}

// takes is what poll does for one frame of a peer, and then what readers may find.
func (s *session) takes(h link.Header, payload []byte) error {
	if err := s.Frame(h, payload); err != nil {
		return err
	}
	s.settleAtOnce()
	conns := s.streams.list()
	if len(conns) > s.streams.limit {
		panic("more streams than the limit")
	}
	held := 0
	for _, c := range conns {
		c.recv.mu.Lock()
		unread := 0
		for k := c.recv.queue.head; k != nil; k = k.next {
			unread += len(k.unread())
		}
		if unread > int(s.cfg.window) {
			panic("a stream holds more than its window")
		}
		held += unread
		c.recv.mu.Unlock()
	}
	if held > int(s.cfg.sessionWindow)+len(conns)*streamMinimum {
		panic("a session holds more than its window")
	}
	return nil
}
