package rnet

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// What a loop has noted of a batch lies in the ring until it is handled. A peer
// that writes over it without credit ends its session.
func TestAPeerThatOverwritesABatchEndsItsSession(t *testing.T) {
	k := carrier{name: "small ring", transport: Soft, limits: Limits{RingSize: minRingSize}}
	l, _ := onHandLoop(t, k, 0)
	p := dialRawPeer(t, l.address)
	const length = minRingSize / 2 // so few fit into one poll
	openRawPeer(t, l, p, length)
	for i := range 3 { // the last lies where the first did
		payload := bytes.Repeat([]byte{byte(i)}, length-frameHeaderLen)
		require.NoError(t, p.send(frame(mux.FrameData, 0, mux.FlagCounted, payload)))
	}
	l.Until(t, "the session ends", p.gone)
	require.Len(t, l.Sinks[0].Errs, 1)
	require.ErrorContains(t, (*mux.Stream)(l.Sinks[0].Stream).Mux().Err(), "reaches to")
}

// openRawPeer makes a raw peer open stream 0 in the first place of the ring, which has a length.
func openRawPeer(t *testing.T, l *handLoop, p *rawPeer, length int) {
	t.Helper()
	require.NoError(t, p.openInFirstPlace(length))
	l.Until(t, "the stream is open", func() bool { return len(l.Sinks) == 1 && len(l.Sinks[0].Got) > 0 })
}

// One that does the same within its credit is served.
func TestAPeerThatWaitsForCreditIsServedByALoop(t *testing.T) {
	k := carrier{name: "small ring", transport: Soft, limits: Limits{RingSize: minRingSize}}
	l, _ := onHandLoop(t, k, 0)
	p := dialRawPeer(t, l.address)
	openRawPeer(t, l, p, maxPayload)
	p.pace = (*mux.Stream)(l.Sinks[0].Stream).Mux()
	sent := len(l.Sinks[0].Got)
	for range 10 {
		for range minRingSize / maxPayload / 2 {
			payload := make([]byte, maxPayload-frameHeaderLen)
			require.NoError(t, p.send(frame(mux.FrameData, 0, mux.FlagCounted, payload)))
			sent += len(payload)
		}
		l.Until(t, "it is there", func() bool { return len(l.Sinks[0].Got) == sent })
	}
}
