package mux

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

const unlimited = -1 // no linger

// Where the end of a stream stands is not known before there is room for it:
// Close, which waits on a network until the peer has it, waits for that first.
func TestCloseWaitsForTheEndThatHasNoRoomYet(t *testing.T) {
	overEach(t, wireLike, func(t *testing.T, device string) {
		k := carrier{device: device, ringSize: link.MinRing}
		dialed, accepted := k.pair(t)
		for {
			c, a := open(t, dialed, accepted)
			busy, unread := open(t, dialed, accepted)
			goOn := stopPolling(t, accepted.Mux)
			awaitBusy := hang.Start(t, func() {
				_, err := busy.Write(make([]byte, 2*link.MinRing))
				assert.NoError(t, err)
			})
			hang.Eventually(t, "the ring is full", func() bool { return !busy.send.wait.Idle() })
			begun, closed := time.Now(), make(chan struct{})
			awaitClose := hang.Start(t, func() {
				defer close(closed)
				assert.NoError(t, c.Close(unlimited))
			})
			early := false
			hang.Eventually(t, "Close waits or returns", func() bool {
				select {
				case <-closed:
					early = true
				default:
				}
				return early || !c.send.wait.Idle()
			})
			goOn()
			awaitClose()
			_, err := io.CopyN(io.Discard, unread, 2*link.MinRing)
			require.NoError(t, err)
			awaitBusy()
			_, err = a.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			if time.Since(begun) >= FlushTime {
				continue // so busy a machine that Close may have given up
			}
			require.False(t, early, "Close returned before the end of the stream was sent")
			dialed.out.mu.Lock()
			defer dialed.out.mu.Unlock()
			require.NotZero(t, c.send.finAt.Requests)
			require.True(t, dialed.link.Reached(c.send.finAt))
			return
		}
	})
}

// On a network Close returns when the peer's device has the end of the stream.
// On iWARP it is a probe that tells.
func TestCloseWaitsForTheProbe(t *testing.T) {
	overEach(t, wireLike, func(t *testing.T, device string) {
		dialed, accepted := carrier{device: device}.pair(t)
		var c *Stream
		// so busy a machine that Close may have given up
		for begun := time.Now().Add(-FlushTime); time.Since(begun) >= FlushTime; {
			c, _ = open(t, dialed, accepted)
			_, err := c.Write(make([]byte, 100<<10))
			require.NoError(t, err)
			begun = time.Now()
			require.NoError(t, c.Close(unlimited))
		}
		dialed.out.mu.Lock()
		defer dialed.out.mu.Unlock()
		require.NotZero(t, c.send.finAt.Requests)
		require.Equal(t, !dialed.link.Immediates(), c.send.finAt.Probes > 0)
		require.True(t, dialed.link.Reached(c.send.finAt))
	})
}
