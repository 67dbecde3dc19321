package mux

import (
	"io"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// The OPEN of a stream that waits for room comes before the stream's data, wherever in a Write
// the room comes.
func TestOpenComesBeforeData(t *testing.T) {
	dialed, accepted := carrier{slots: link.MinSlots}.pair(t)
	for range 200 {
		goOn := stopPolling(t, accepted.Mux)
		var streams []*Stream
		var last *Stream
		for last == nil || !dialed.out.unsaid() {
			st, err := dialed.open()
			require.NoError(t, err)
			streams, last = append(streams, st), st
		}
		var sent atomic.Bool
		await := hang.Start(t, func() {
			goOn()
			for dialed.out.blocked.Load() && !sent.Load() { // until there is credit
				dialed.pollLock.Look()
			}
		})
		for {
			_, result, err := dialed.out.send(&last.send, []byte("x"), nil, 0)
			require.NoError(t, err)
			if result == sendOK {
				break
			}
			dialed.out.leaveQueue(&last.send)
		}
		sent.Store(true)
		await()
		for _, st := range streams {
			far := hang.Receive(t, accepted.opened, "the OPEN")
			require.Equal(t, st.id, far.id)
			if st == last {
				require.NoError(t, st.CloseWrite())
				got, err := io.ReadAll(far)
				require.NoError(t, err)
				require.Equal(t, "x", string(got))
			}
			require.NoError(t, st.Close(0))
			require.NoError(t, far.Close(0))
		}
	}
}

// What comes behind the end that a peer has told is not added to the stream, whose reader may have
// had that end.
func TestDataBehindAFinIsAViolation(t *testing.T) {
	dev, err := verbs.Open(soft.DeviceName)
	require.NoError(t, err)
	defer dev.Close()
	m := loneMux(t, dev)
	defer m.Abandon()
	require.NoError(t, takes(m, link.Header{Stream: 1, Kind: FrameOpen}, []byte("all")))
	require.NoError(t, takes(m, link.Header{Stream: 1, Kind: FrameFin}, position(3)))
	require.ErrorIs(t, takes(m, link.Header{Stream: 1, Kind: FrameData}, []byte("x")), ErrProtocol)
}

// A Read may take its buffer back when the end has come that its last bytes came before.
func TestAPeerThatHasEndedIsToldOfNoWindow(t *testing.T) {
	dialed, accepted := carrier{window: MinWindow}.pair(t)
	c, s := open(t, dialed, accepted)
	s.recv.mu.Lock()
	s.recv.dst = make([]byte, MinWindow) // as read does
	s.recv.mu.Unlock()
	n, err := c.Write(make([]byte, MinWindow/2))
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	hang.Eventually(t, "the end arrives", func() bool {
		accepted.pollLock.Look()
		return s.ends.Load()&endFinRecv != 0
	})
	require.Equal(t, n, s.recv.takeBack(false))
	accepted.out.mu.Lock()
	defer accepted.out.mu.Unlock()
	require.Zero(t, accepted.out.control.windows)
}
