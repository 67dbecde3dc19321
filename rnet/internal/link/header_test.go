package link

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFrameHeaderHasTheBytesOfTheProtocol(t *testing.T) {
	h := wireHeader{Header: Header{Stream: 0x01020304, Kind: 5, Flags: 1}, slots: 0x0506, length: 0, credit: 0x0708090a}
	var b [HeaderLen]byte
	h.put(&b)
	require.Equal(t, []byte{4, 3, 2, 1, 5, 1, 6, 5, 0, 0, 0, 0, 0x0a, 9, 8, 7}, b[:])
	got, payload, rest, err := parseFrame(b[:])
	require.NoError(t, err)
	require.Equal(t, h, got)
	require.Empty(t, payload)
	require.Empty(t, rest)
}

func TestFramesOfOneMessageStartAligned(t *testing.T) {
	msg := message(
		frame(1, 7, 0, nil),
		frame(3, 7, 0, []byte("seventeen bytes..")),
		frame(5, 7, 1, nil),
	)
	var kinds []uint8
	for rest := msg; len(rest) > 0; {
		h, payload, next, err := parseFrame(rest)
		require.NoError(t, err)
		require.Zero(t, (len(msg)-len(rest))%Align)
		require.Equal(t, int(h.length), len(payload))
		require.Equal(t, len(payload), cap(payload), "a payload must not reach into the next frame")
		kinds = append(kinds, h.Kind)
		rest = next
	}
	require.Equal(t, []uint8{1, 3, 5}, kinds)
}

func TestMalformedFrameIsRefused(t *testing.T) {
	long := frame(3, 1, 0, make([]byte, 32))
	for _, n := range []int{0, 1, HeaderLen - 1, HeaderLen, len(long) - 1} {
		_, _, _, err := parseFrame(long[:n])
		require.ErrorIs(t, err, ErrProtocol, "%d bytes", n)
	}
	huge := bytes.Clone(long)
	copy(huge[8:], []byte{0xff, 0xff, 0xff, 0xff})
	_, _, _, err := parseFrame(huge)
	require.ErrorIs(t, err, ErrProtocol)
}

func TestCreditImmediateTellsPositionAndSlots(t *testing.T) {
	const ring = 1 << 20
	const unit = ring / creditParts
	for _, tc := range []struct {
		name            string
		released, known uint64
		want            uint64
	}{
		{"nothing yet", 0, 0, 0},
		{"first quarter", ring / 4, 0, ring / 4},
		{"rounded down to a unit", ring/4 + unit - 1, 0, ring / 4},
		{"nothing new", 3 * ring, 3 * ring, 3 * ring},
		{"a whole ring", 7*ring + 4096, 6*ring + 4096, 7*ring + 4096},
		{"after the low bits wrapped", 9 * ring, 8*ring - unit, 9 * ring},
		{"late: behind what is known", ring, 2 * ring, 2 * ring},
		{"between two units", 5*ring + 16, 5*ring + 32, 5*ring + 32},
	} {
		t.Run(tc.name, func(t *testing.T) {
			imm := creditImm(tc.released, ring, 0xbeef)
			require.NotZero(t, imm&immCredit)
			got, slots := parseCreditImm(imm, tc.known, ring)
			require.Equal(t, tc.want, got)
			require.Equal(t, uint16(0xbeef), slots)
		})
	}
}

func TestStaleLowBitsAreNoCredit(t *testing.T) {
	for _, tc := range []struct {
		low   uint32
		known uint64
		want  uint64
	}{
		{0, 0, 0},
		{16, 0, 16},
		{0, 16, 0},
		{16, 1<<32 - 16, 32},
		{0xfffffff0, 1 << 32, 0},
		{1 << 31, 0, 0},
	} {
		require.Equal(t, tc.want, ahead32(tc.low, tc.known), "%+v", tc)
	}
}

// frame returns the bytes of one frame, for peers made by hand.
func frame(kind uint8, stream uint32, flags uint8, payload []byte) []byte {
	h := wireHeader{Header: Header{Stream: stream, Kind: kind, Flags: flags}, length: uint32(len(payload))}
	var b [HeaderLen]byte
	h.put(&b)
	return append(b[:], payload...)
}

// message joins frames as one WRITE_WITH_IMM carries them.
func message(frames ...[]byte) []byte {
	var msg []byte
	for _, f := range frames {
		msg = append(msg, make([]byte, align(len(msg))-len(msg))...)
		msg = append(msg, f...)
	}
	return msg
}
