package rnet

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// frameBytes is a frame as it goes over the wire, padded to frameAlign.
func frameBytes(h frameHeader, payload []byte) []byte {
	h.length = uint32(len(payload))
	var head [frameHeaderLen]byte
	h.put(&head)
	b := append(head[:], payload...)
	return append(b, make([]byte, alignFrame(len(b))-len(b))...)
}

// FuzzParseFrame walks the frames of any message: whatever it holds, the
// pieces lie inside it, in order, and the walk ends.
func FuzzParseFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, frameHeaderLen))
	f.Add(frameBytes(frameHeader{stream: 7, kind: frameData, slots: 3, credit: 4096}, []byte("hello")))
	f.Add(append(frameBytes(frameHeader{kind: frameOpen}, nil), frameBytes(frameHeader{kind: frameWindow}, make([]byte, 8))...))
	f.Add(append(make([]byte, 8), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, msg []byte) {
		rest := msg
		for len(rest) > 0 {
			before := len(rest)
			h, payload, next, err := parseFrame(rest)
			if err != nil {
				require.ErrorIs(t, err, errFrame)
				return
			}
			require.Equal(t, int(h.length), len(payload))
			require.LessOrEqual(t, frameHeaderLen+len(payload)+len(next), before)
			require.Equal(t, len(payload), cap(payload), "a payload must not reach into the next frame")
			if len(next) > 0 {
				require.Zero(t, (before-len(next))%frameAlign)
			}
			var again [frameHeaderLen]byte
			h.put(&again)
			require.Equal(t, rest[:frameHeaderLen], again[:], "a header survives being read and written")
			rest = next
		}
	})
}

// FuzzParseHello reads any private data: what is accepted is in range, and
// says the same when it is written again.
func FuzzParseHello(f *testing.F) {
	good := hello{minVersion: 2, maxVersion: 2, sessionWindow: 1 << 20, ringAddr: 1 << 40, ringKey: 9, ringSize: 1 << 20, slots: 2048, window: 1 << 19, streams: 1 << 20, pid: 1, token: 2}
	f.Add(good.marshal())
	f.Add(append(good.marshal(), 0, 0, 0, 0, 0, 0, 0, 0))
	good.ringSize++
	f.Add(good.marshal())
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			require.True(t, errors.Is(err, errHello) || errors.Is(err, errVersion), "%v", err)
			return
		}
		require.NoError(t, new(ring.Tx).Init(h.ringSize))
		require.NoError(t, new(ring.SendSlots).Init(int(h.slots)))
		require.NoError(t, new(ring.SendWindow).Init(h.window))
		require.LessOrEqual(t, h.streams, uint32(maxStreams))
		again, err := parseHello(h.marshal())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

// FuzzCreditImm compares the credit of an immediate with what was known: it
// never goes back, and what was really released comes out, rounded down.
func FuzzCreditImm(f *testing.F) {
	f.Add(uint32(0), uint64(0), uint64(0), uint8(16))
	f.Add(uint32(1<<31|5<<16|7), uint64(4096), uint64(100), uint8(20))
	f.Add(uint32(0xffffffff), uint64(1)<<40, uint64(1)<<20, uint8(30))
	f.Fuzz(func(t *testing.T, imm uint32, known, more uint64, log uint8) {
		size := uint32(1) << (16 + log%15)
		known &= 1<<60 - 1
		got, _ := parseCreditImm(imm, known, size)
		require.GreaterOrEqual(t, got, known)

		released := known + more%uint64(size)
		got, slots := parseCreditImm(creditImm(released, size, uint16(imm)), known, size)
		require.Equal(t, uint16(imm), slots)
		require.LessOrEqual(t, got, released)
		require.Less(t, released-got, uint64(size)/creditParts)
	})
}

// FuzzNotice reads any completion of a receive on a device without immediates,
// and whatever a peer may have sent to the places of the receives: a notice or
// a short message is taken from its own place and nowhere else, and what split
// sends comes out.
func FuzzNotice(f *testing.F) {
	f.Add(uint64(0), uint32(noticeLen), uint32(1<<31|5<<16|7), uint32(4096))
	f.Add(uint64(2), uint32(noticeLen), uint32(0), uint32(0))
	f.Add(uint64(3), uint32(noticeLen), uint32(0xffffffff), uint32(0xffffffff)) // the place of probes' answers
	f.Add(uint64(1)<<57, uint32(noticeLen), uint32(0), uint32(1))               // times shortMessage it is 0
	f.Add(uint64(1), uint32(noticeLen-1), uint32(0), uint32(1))
	f.Add(uint64(1), uint32(noticeLen+1), uint32(0), uint32(1))
	f.Add(uint64(1), uint32(frameHeaderLen), uint32(0), uint32(1))
	f.Add(uint64(2), uint32(shortMessage), uint32(0), uint32(1))
	f.Add(uint64(2), uint32(shortMessage+1), uint32(0), uint32(1))
	f.Add(uint64(1), uint32(0xffffffff), uint32(0), uint32(1))
	dev, err := acquireDevice("soft0")
	require.NoError(f, err)
	f.Cleanup(dev.release)
	pd, err := dev.ctx.AllocPD()
	require.NoError(f, err)
	f.Cleanup(func() { pd.Close() })
	const places = 3
	var n notices
	require.NoError(f, n.alloc(pd, places))
	f.Cleanup(func() { n.mr.Close() })
	f.Fuzz(func(t *testing.T, place uint64, length, imm, written uint32) {
		mem := n.mr.Bytes()
		clear(mem)
		notice := place < places && length == noticeLen
		message := place < places && length >= frameHeaderLen && length <= shortMessage
		if notice || message {
			binary.LittleEndian.PutUint32(mem[place*shortMessage:], imm)
			binary.LittleEndian.PutUint32(mem[place*shortMessage+4:], written)
		}
		wc := verbs.WC{ID: place, ByteLen: length, Opcode: verbs.WCRecv}
		short, err := n.read(&wc)
		switch {
		case message:
			require.NoError(t, err)
			require.Len(t, short, int(length))
			require.Equal(t, len(short), cap(short))
			require.Equal(t, imm, binary.LittleEndian.Uint32(short))
			require.Equal(t, verbs.WC{ID: place, ByteLen: length, Imm: immFrames, Opcode: verbs.WCRecvWriteWithImm}, wc)
			return
		case !notice:
			require.ErrorIs(t, err, errProtocol)
			return
		}
		require.NoError(t, err)
		require.Nil(t, short)
		require.Equal(t, verbs.WC{ID: place, ByteLen: written, Imm: imm, Opcode: verbs.WCRecvWriteWithImm}, wc)

		wrs := n.split(&verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: imm, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, written%8192)}})
		copy(mem[place*shortMessage:], wrs[len(wrs)-1].Inline[0])
		wc = verbs.WC{ID: place, ByteLen: noticeLen}
		_, err = n.read(&wc)
		require.NoError(t, err)
		require.Equal(t, imm, wc.Imm)
		require.Equal(t, written%8192, wc.ByteLen)
	})
}

// FuzzMessage gives a listening session whatever messages a peer may write
// into its ring. Either it takes them, and its accounts stay in order, or it
// calls the peer a liar; it does not panic.
func FuzzMessage(f *testing.F) {
	open := frameBytes(frameHeader{stream: 1, kind: frameOpen}, []byte("first data"))
	data := frameBytes(frameHeader{stream: 1, kind: frameData, flags: flagCounted}, make([]byte, 5000))
	window := frameBytes(frameHeader{stream: 1, kind: frameWindow}, []byte{0, 0, 16, 0, 0, 0, 0, 0})
	seed := func(messages ...[]byte) {
		var b []byte
		for _, m := range messages {
			b = binary.LittleEndian.AppendUint16(b, uint16(len(m)))
			b = append(b, m...)
		}
		f.Add(b)
	}
	seed(open)
	seed(open, data, window)
	seed(open, open)
	seed(append(append(open, data...), window...), data)
	seed(open, frameBytes(frameHeader{stream: 1, kind: frameFin, flags: flagClosed}, nil), data)
	seed(open, frameBytes(frameHeader{stream: 1, kind: frameReset}, nil), open)
	seed(frameBytes(frameHeader{kind: frameGoAway}, nil), frameBytes(frameHeader{kind: framePing}, nil))
	seed(frameBytes(frameHeader{stream: 0xffffffff, kind: frameOpen, slots: 0xffff, credit: 0xffffffff}, nil))
	seed([]byte{1})
	dev, err := acquireDevice("soft0") // opening it for each input would take most of the time
	require.NoError(f, err)
	f.Cleanup(dev.release)
	f.Fuzz(func(t *testing.T, script []byte) {
		s := loneSession(t)
		defer s.abandon()
		for len(script) >= 2 {
			n := int(binary.LittleEndian.Uint16(script))
			script = script[2:]
			n = min(n, len(script))
			if err := s.arrives(script[:n]); err != nil {
				require.True(t, errors.Is(err, errProtocol), "%v", err)
				return
			}
			script = script[n:]
		}
	})
}

// loneSession is a listening session without a peer: what it would send is
// dropped.
func loneSession(t testing.TB) *session {
	cfg := sessionConfig{ringSize: minRingSize, slots: minSlots, window: 16 << 10, maxStreams: 64, sessionWindow: minSessionWindow, profile: fallback.Efficient}
	s, err := newSession("soft0", cfg, noLog)
	require.NoError(t, err)
	peer := hello{minVersion: 2, maxVersion: 2, sessionWindow: minSessionWindow, ringSize: minRingSize, slots: minSlots, window: minWindow, streams: 64}
	require.NoError(t, s.learn(peer.marshal()))
	s.accept = func(c *Conn) bool { return c.id%5 != 4 } // some are refused
	s.txDead = true
	return s
}

// arrives is what poll does for one message of a peer, and then what readers
// may find.
func (s *session) arrives(msg []byte) error {
	s.rxMu.Lock()
	defer s.rxMu.Unlock()
	ahead := s.rx // a copy: where the message will be placed
	if off, err := ahead.Place(len(msg)); err == nil {
		copy(s.rxMR.Bytes()[off:], msg)
	}
	if err := s.message(&verbs.WC{ByteLen: uint32(len(msg))}); err != nil {
		return err
	}
	s.releaseLocked()
	if released, placed := s.rx.Released(), s.rx.Placed(); released > placed || placed-released > uint64(s.cfg.ringSize) {
		panic("released more than was placed, or less than the ring allows")
	}
	conns := s.streams.list()
	if len(conns) > s.streams.limit {
		panic("more streams than the limit")
	}
	held := 0
	for _, c := range conns {
		c.recvMu.Lock()
		unread := 0
		for k := c.queue.head; k != nil; k = k.next {
			unread += len(k.unread())
		}
		if unread > int(s.cfg.window) {
			panic("a stream holds more than its window")
		}
		held += unread
		c.recvMu.Unlock()
	}
	if held > int(s.cfg.sessionWindow)+len(conns)*streamMinimum {
		panic("a session holds more than its window")
	}
	if s.rx.Retained() > int(s.cfg.ringSize)/2 {
		s.spill(int(s.cfg.ringSize) / 4)
	}
	return nil
}
