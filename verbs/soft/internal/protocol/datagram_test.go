//go:build linux

package protocol

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

var goodDatagram = Datagram{
	From: Endpoint{GID: verbs.GID{1, 2}, QPN: 5}, To: Endpoint{GID: verbs.GID{3, 15: 4}, QPN: 1<<24 - 1}, QKey: 0x11223344, Imm: 0xaabbccdd,
	FlowLabel: 0xfffff, Flags: DatagramImm | DatagramSolicited, SL: 15, TrafficClass: 0xab, HopLimit: 64,
}

func TestDatagramsSurviveTheWire(t *testing.T) {
	b := append(make([]byte, DatagramHeaderSize), "payload"...)
	goodDatagram.Encode(b)
	h, payload, err := ParseDatagram(b)
	require.NoError(t, err)
	require.Equal(t, goodDatagram, h)
	require.Equal(t, "payload", string(payload))
}

// FuzzDatagram: nothing panics, and what is accepted is what Encode makes.
func FuzzDatagram(f *testing.F) {
	b := make([]byte, DatagramHeaderSize+3)
	goodDatagram.Encode(b)
	f.Add(b)
	f.Add(b[:DatagramHeaderSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, payload, err := ParseDatagram(b)
		if err != nil {
			return
		}
		again := append(make([]byte, DatagramHeaderSize), payload...)
		h.Encode(again)
		require.Equal(t, b, again)
	})
}
