package rnet

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

func goodHello() hello {
	return hello{
		minVersion: 2, maxVersion: 2,
		link:   link.Params{RingAddr: 0x7f0011223344, RingKey: 0xabad1dea, RingSize: 1 << 20, Slots: 2048},
		window: 512 << 10, streams: 1000, pid: 4711, token: 0x0102030405060708, sessionWindow: 1 << 24,
	}
}

func TestHelloSurvivesTheWire(t *testing.T) {
	h := goodHello()
	b := h.marshal()
	require.Len(t, b, helloLen)
	require.Equal(t, "RJT1", string(b[:4]))
	got, err := parseHello(b)
	require.NoError(t, err)
	require.Equal(t, h, got)
}

func TestHelloFitsIntoTheRequest(t *testing.T) {
	require.LessOrEqual(t, helloLen, rcm.MaxRequestData)
	h := goodHello()
	padded := make([]byte, rcm.MaxReplyData)
	copy(padded, h.marshal())
	got, err := parseHello(padded)
	require.NoError(t, err)
	require.Equal(t, h, got)
}

func TestHelloWithLaterVersionsIsUnderstood(t *testing.T) {
	h := goodHello()
	h.maxVersion = 9
	_, err := parseHello(h.marshal())
	require.NoError(t, err)
}

func TestHelloAllowsNoMoreStreamsThanIDs(t *testing.T) {
	h := goodHello()
	h.streams = 1<<32 - 1
	got, err := parseHello(h.marshal())
	require.NoError(t, err)
	require.EqualValues(t, maxStreams, got.streams)
}

// badHellos are what a peer must not say, and the error that it gets.
var badHellos = []struct {
	name   string
	change func(h *hello)
	want   error
}{
	{"version of the future", func(h *hello) { h.minVersion, h.maxVersion = 3, 4 }, errVersion},
	{"version of the past", func(h *hello) { h.minVersion, h.maxVersion = 1, 1 }, errVersion},
	{"versions upside down", func(h *hello) { h.minVersion = 3 }, errHello},
	{"no ring", func(h *hello) { h.link.RingSize = 0 }, errHello},
	{"small ring", func(h *hello) { h.link.RingSize = minRingSize / 2 }, errHello},
	{"huge ring", func(h *hello) { h.link.RingSize = 2 * maxRingSize }, errHello},
	{"odd ring", func(h *hello) { h.link.RingSize = minRingSize + 16 }, errHello},
	{"ring around the end of memory", func(h *hello) { h.link.RingAddr = 1<<64 - 4096 }, errHello},
	{"no slots", func(h *hello) { h.link.Slots = 0 }, errHello},
	{"too many slots", func(h *hello) { h.link.Slots = link.MaxSlots + 1 }, errHello},
	{"no window", func(h *hello) { h.window = 0 }, errHello},
	{"huge window", func(h *hello) { h.window = maxWindow + 1 }, errHello},
	{"no session window", func(h *hello) { h.sessionWindow = 0 }, errHello},
	{"huge session window", func(h *hello) { h.sessionWindow = maxSessionWindow + 1 }, errHello},
	{"no streams", func(h *hello) { h.streams = 0 }, errHello},
}

func TestImpossibleHelloIsRefused(t *testing.T) {
	for _, tc := range badHellos {
		h := goodHello()
		tc.change(&h)
		_, err := parseHello(h.marshal())
		require.ErrorIs(t, err, tc.want, tc.name)
	}
	h := goodHello()
	b := h.marshal()
	for n := range helloLen {
		_, err := parseHello(b[:n])
		require.ErrorIs(t, err, errHello, "%d bytes", n)
	}
	binary.LittleEndian.PutUint16(b[6:], helloProbes|helloShort)
	_, err := parseHello(b)
	require.ErrorIs(t, err, errHello, "from a peer that neither gives nor awaits addresses")

	b = h.marshal()
	binary.LittleEndian.PutUint32(b, helloMagic+1)
	_, err = parseHello(b)
	require.ErrorIs(t, err, errHello)
}

// A peer that does not say that it answers probes gets none.
func TestHelloTellsOfProbes(t *testing.T) {
	h := goodHello()
	h.link.Probes = true
	b := h.marshal()
	b[7] = 0xff // what we do not know
	got, err := parseHello(b)
	require.NoError(t, err)
	require.Equal(t, h, got)
}
