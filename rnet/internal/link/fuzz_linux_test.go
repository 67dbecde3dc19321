package link

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// frameBytes is a frame as it goes over the wire, padded to Align.
func frameBytes(h wireHeader, payload []byte) []byte {
	h.length = uint32(len(payload))
	var head [HeaderLen]byte
	h.put(&head)
	b := append(head[:], payload...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

// FuzzParseFrame walks the frames of any message: whatever it holds, the
// pieces lie inside it, in order, and the walk ends.
func FuzzParseFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, HeaderLen))
	f.Add(frameBytes(wireHeader{Header: Header{Stream: 7, Kind: 3}, slots: 3, credit: 4096}, []byte("hello")))
	f.Add(append(frameBytes(wireHeader{Header: Header{Kind: 1}}, nil), frameBytes(wireHeader{Header: Header{Kind: 4}}, make([]byte, 8))...))
	f.Add(append(make([]byte, 8), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, msg []byte) {
		rest := msg
		for len(rest) > 0 {
			before := len(rest)
			h, payload, next, err := parseFrame(rest)
			if err != nil {
				require.ErrorIs(t, err, ErrProtocol)
				return
			}
			require.Equal(t, int(h.length), len(payload))
			require.LessOrEqual(t, HeaderLen+len(payload)+len(next), before)
			require.Equal(t, len(payload), cap(payload), "a payload must not reach into the next frame")
			if len(next) > 0 {
				require.Zero(t, (before-len(next))%Align)
			}
			var again [HeaderLen]byte
			h.put(&again)
			require.Equal(t, rest[:HeaderLen], again[:], "a header survives being read and written")
			rest = next
		}
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

// FuzzEmulation reads any completion of a receive on a device without immediates,
// and whatever a peer may have sent to the places of the receives: such a SEND or
// a short message is taken from its own place and nowhere else, and what split
// sends comes out.
func FuzzEmulation(f *testing.F) {
	f.Add(uint64(0), uint32(immediateSendLen), uint32(1<<31|5<<16|7), uint32(4096))
	f.Add(uint64(2), uint32(immediateSendLen), uint32(0), uint32(0))
	f.Add(uint64(3), uint32(immediateSendLen), uint32(0xffffffff), uint32(0xffffffff)) // the place of probes' answers
	f.Add(uint64(1)<<57, uint32(immediateSendLen), uint32(0), uint32(1))               // times shortMessage it is 0
	f.Add(uint64(1), uint32(immediateSendLen-1), uint32(0), uint32(1))
	f.Add(uint64(1), uint32(immediateSendLen+1), uint32(0), uint32(1))
	f.Add(uint64(1), uint32(HeaderLen), uint32(0), uint32(1))
	f.Add(uint64(2), uint32(shortMessage), uint32(0), uint32(1))
	f.Add(uint64(2), uint32(shortMessage+1), uint32(0), uint32(1))
	f.Add(uint64(1), uint32(0xffffffff), uint32(0), uint32(1))
	pd, err := openDevice(f, soft.DeviceName).AllocPD()
	require.NoError(f, err)
	f.Cleanup(func() { pd.Close() })
	const places = 3
	var n emulation
	require.NoError(f, n.alloc(pd, places))
	f.Cleanup(func() { n.mr.Close() })
	f.Fuzz(func(t *testing.T, place uint64, length, imm, written uint32) {
		mem := n.mr.Bytes()
		clear(mem)
		standsForImmediate := place < places && length == immediateSendLen
		message := place < places && length >= HeaderLen && length <= shortMessage
		if standsForImmediate || message {
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
		case !standsForImmediate:
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		require.NoError(t, err)
		require.Nil(t, short)
		require.Equal(t, verbs.WC{ID: place, ByteLen: written, Imm: imm, Opcode: verbs.WCRecvWriteWithImm}, wc)

		wrs := n.split(&verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: imm, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, written%8192)}})
		copy(mem[place*shortMessage:], wrs[len(wrs)-1].Inline[0])
		wc = verbs.WC{ID: place, ByteLen: immediateSendLen}
		_, err = n.read(&wc)
		require.NoError(t, err)
		require.Equal(t, imm, wc.Imm)
		require.Equal(t, written%8192, wc.ByteLen)
	})
}

// FuzzMessage gives a link whatever messages a peer may write into its ring, and a user
// that keeps some. Either it takes them, and its accounts stay in order, or it calls the
// peer a liar; it does not panic.
func FuzzMessage(f *testing.F) {
	seed := func(messages ...[]byte) {
		var b []byte
		for _, m := range messages {
			b = binary.LittleEndian.AppendUint16(b, uint16(len(m)))
			b = append(b, m...)
		}
		f.Add(b)
	}
	short, long := frame(1, 1, 0, []byte("first data")), frame(3, 1, 1, make([]byte, 5000))
	seed(short)
	seed(long, long, short, long)
	seed(message(short, long), long, message(short, short))
	seed(frameBytes(wireHeader{Header: Header{Stream: 0xffffffff, Kind: 1}, slots: 0xffff, credit: 0xffffffff}, nil))
	seed([]byte{1})
	dev := openDevice(f, soft.DeviceName)
	f.Fuzz(func(t *testing.T, script []byte) {
		var send sync.Mutex
		u := &user{keep: func(h Header, p []byte) bool { return h.Stream%2 == 1 && len(p) > 100 }}
		l, err := New(Config{Device: dev, Release: func() {}, RingSize: MinRing, Slots: MinSlots, Send: &send}, u)
		require.NoError(t, err)
		defer l.Close()
		u.link = l
		require.NoError(t, l.Connect(Params{RingSize: MinRing, Slots: MinSlots}))
		l.Stop()
		for len(script) >= 2 {
			n := int(binary.LittleEndian.Uint16(script))
			script = script[2:]
			n = min(n, len(script))
			if err := arrives(l, script[:n]); err != nil {
				require.True(t, errors.Is(err, ErrProtocol), "%v", err)
				return
			}
			script = script[n:]
		}
	})
}

// arrives is what Poll does for one message of a peer.
func arrives(l *Link, msg []byte) error {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	ahead := l.in.rx // a copy: where the message will be placed
	if off, err := ahead.Place(len(msg)); err == nil {
		copy(l.in.mr.Bytes()[off:], msg)
	}
	msg, err := l.in.message(&verbs.WC{ByteLen: uint32(len(msg))}, l.given.released.Load())
	if err != nil {
		return err
	}
	if err := l.takeFrames(msg); err != nil {
		return err
	}
	l.in.publish(&l.given)
	if released, placed := l.in.rx.Released(), l.in.rx.Placed(); released > placed || placed-released > uint64(l.in.size) {
		panic("released more than was placed, or less than the ring allows")
	}
	if l.in.rx.Retained() > int(l.in.size)/2 {
		l.in.moveOut(int(l.in.size) / 4)
	}
	return nil
}
