package rnet

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// overWireLike are the carriers whose devices have what is sent on its way
// when it is posted.
var overWireLike = orKernel(overStage, overNotices)

// Where the end of a stream stands is not known before there is room for it:
// Close, which waits on a network until the peer has it, waits for that first.
func TestCloseWaitsForTheEndThatHasNoRoomYet(t *testing.T) {
	over(t, overWireLike, func(t *testing.T, k carrier) {
		k.limits.RingSize = minRingSize
		ln := k.listen(t)
		for {
			d, a := k.connect(t, ln)
			busy, unread := k.connect(t, ln)
			c := d.(*Conn)
			require.Same(t, c.s, busy.(*Conn).s, "one ring for both")
			goOn := stopPolling(t, a.(*Conn).s.mux)
			awaitBusy := start(t, func() {
				_, err := busy.Write(make([]byte, 2*minRingSize))
				assert.NoError(t, err)
			})
			eventually(t, "the ring is full", func() bool { return !busy.(*Conn).st.send.wait.Idle() })
			begun, closed := time.Now(), make(chan struct{})
			awaitClose := start(t, func() {
				defer close(closed)
				assert.NoError(t, c.Close())
			})
			early := false
			eventually(t, "Close waits or returns", func() bool {
				select {
				case <-closed:
					early = true
				default:
				}
				return early || !c.st.send.wait.Idle()
			})
			goOn()
			awaitClose()
			_, err := io.CopyN(io.Discard, unread, 2*minRingSize)
			require.NoError(t, err)
			awaitBusy()
			_, err = a.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			if time.Since(begun) >= flushTime {
				continue // so busy a machine that Close may have given up
			}
			require.False(t, early, "Close returned before the end of the stream was sent")
			c.s.mux.txMu.Lock()
			defer c.s.mux.txMu.Unlock()
			require.NotZero(t, c.st.send.finAt.Requests)
			require.True(t, c.s.mux.link.Reached(c.st.send.finAt))
			return
		}
	})
}

// stopPolling keeps a session from taking in what arrives. What it returns ends that.
func stopPolling(t testing.TB, m *mux) (goOn func()) {
	stopped, end := make(chan struct{}), make(chan struct{})
	await := start(t, func() {
		for !m.pollLock.Do(func() { // somebody else may have the lock
			close(stopped)
			<-end // ended by goOn
		}) {
			time.Sleep(time.Millisecond)
		}
	})
	<-stopped
	return func() {
		close(end)
		await()
	}
}

// On a network Close returns when the peer's device has the end of the stream.
// On iWARP it is a probe that tells.
func TestCloseWaitsForTheProbe(t *testing.T) {
	over(t, overWireLike, func(t *testing.T, k carrier) {
		var dialed *Conn
		for begun := time.Now().Add(-flushTime); time.Since(begun) >= flushTime; { // so busy a machine that Close may have given up
			dialed, _ = k.streams(t)
			_, err := dialed.Write(randomBytes(1, 100<<10))
			require.NoError(t, err)
			begun = time.Now()
			require.NoError(t, dialed.Close())
		}
		s := dialed.s.mux
		s.txMu.Lock()
		defer s.txMu.Unlock()
		require.NotZero(t, dialed.st.send.finAt.Requests)
		require.Equal(t, !s.link.Immediates(), dialed.st.send.finAt.Probes > 0)
		require.True(t, s.link.Reached(dialed.st.send.finAt))
	})
}
