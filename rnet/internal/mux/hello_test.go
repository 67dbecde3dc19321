package mux

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

func goodHello() Hello {
	return Hello{
		MinVersion: protocolVersion, MaxVersion: protocolVersion,
		Link:   link.Params{RingAddr: 0x7f0011223344, RingKey: 0xabad1dea, RingSize: 1 << 20, Slots: 2048},
		Window: 512 << 10, Streams: 1000, PID: 4711, Token: 0x0102030405060708, SessionWindow: 1 << 24,
	}
}

func TestHelloSurvivesTheWire(t *testing.T) {
	h := goodHello()
	b := h.Marshal()
	require.Len(t, b, HelloLen)
	require.Equal(t, "RJT1", string(b[:4]))
	got, err := ParseHello(b)
	require.NoError(t, err)
	require.Equal(t, h, got)
}

func TestHelloFitsIntoTheRequest(t *testing.T) {
	require.LessOrEqual(t, HelloLen, rcm.MaxRequestData)
	h := goodHello()
	padded := make([]byte, rcm.MaxReplyData)
	copy(padded, h.Marshal())
	got, err := ParseHello(padded)
	require.NoError(t, err)
	require.Equal(t, h, got)
}

func TestHelloWithLaterVersionsIsUnderstood(t *testing.T) {
	h := goodHello()
	h.MaxVersion = 9
	_, err := ParseHello(h.Marshal())
	require.NoError(t, err)
}

func TestHelloAllowsNoMoreStreamsThanIDs(t *testing.T) {
	h := goodHello()
	h.Streams = 1<<32 - 1
	got, err := ParseHello(h.Marshal())
	require.NoError(t, err)
	require.EqualValues(t, MaxStreams, got.Streams)
}

// badHellos are what a peer must not say, and the error that it gets.
var badHellos = []struct {
	name   string
	change func(h *Hello)
	want   error
}{
	{"version of the future", func(h *Hello) { h.MinVersion, h.MaxVersion = protocolVersion+1, protocolVersion+2 }, ErrVersion},
	{"version of the past", func(h *Hello) { h.MinVersion, h.MaxVersion = 1, protocolVersion-1 }, ErrVersion},
	{"versions upside down", func(h *Hello) { h.MinVersion = protocolVersion + 1 }, ErrHello},
	{"no ring", func(h *Hello) { h.Link.RingSize = 0 }, ErrHello},
	{"small ring", func(h *Hello) { h.Link.RingSize = link.MinRing / 2 }, ErrHello},
	{"huge ring", func(h *Hello) { h.Link.RingSize = 2 * link.MaxRing }, ErrHello},
	{"odd ring", func(h *Hello) { h.Link.RingSize = link.MinRing + 16 }, ErrHello},
	{"ring around the end of memory", func(h *Hello) { h.Link.RingAddr = 1<<64 - 4096 }, ErrHello},
	{"no slots", func(h *Hello) { h.Link.Slots = 0 }, ErrHello},
	{"too many slots", func(h *Hello) { h.Link.Slots = link.MaxSlots + 1 }, ErrHello},
	{"no window", func(h *Hello) { h.Window = 0 }, ErrHello},
	{"huge window", func(h *Hello) { h.Window = MaxWindow + 1 }, ErrHello},
	{"no session window", func(h *Hello) { h.SessionWindow = 0 }, ErrHello},
	{"huge session window", func(h *Hello) { h.SessionWindow = MaxSessionWindow + 1 }, ErrHello},
	{"no streams", func(h *Hello) { h.Streams = 0 }, ErrHello},
}

func TestImpossibleHelloIsRefused(t *testing.T) {
	for _, tc := range badHellos {
		h := goodHello()
		tc.change(&h)
		_, err := ParseHello(h.Marshal())
		require.ErrorIs(t, err, tc.want, tc.name)
	}
	h := goodHello()
	b := h.Marshal()
	for n := range HelloLen {
		_, err := ParseHello(b[:n])
		require.ErrorIs(t, err, ErrHello, "%d bytes", n)
	}
	binary.LittleEndian.PutUint16(b[6:], helloProbes|helloShort)
	_, err := ParseHello(b)
	require.ErrorIs(t, err, ErrHello, "from a peer that neither gives nor awaits addresses")

	b = h.Marshal()
	binary.LittleEndian.PutUint32(b, helloMagic+1)
	_, err = ParseHello(b)
	require.ErrorIs(t, err, ErrHello)
}

// A peer that does not say that it answers probes gets none.
func TestHelloTellsOfProbes(t *testing.T) {
	h := goodHello()
	h.Link.Probes = true
	b := h.Marshal()
	b[7] = 0xff // what we do not know
	got, err := ParseHello(b)
	require.NoError(t, err)
	require.Equal(t, h, got)
}
