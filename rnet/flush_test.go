package rnet

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// takeSendQueue leaves a session no place in its send queue for frames, as if
// all were under way on a slow network. What it returns ends that.
func takeSendQueue(s *session) (giveBack func()) {
	s.txMu.Lock()
	s.sqUsed += s.sqLen
	s.txMu.Unlock()
	return func() {
		s.txMu.Lock()
		s.sqUsed -= s.sqLen
		s.txMu.Unlock()
		s.creditCame()
	}
}

// Where the end of a stream stands is not known before there is room for it:
// Close, which waits on a network until the peer has it, waits for that first.
func TestCloseWaitsForTheEndThatHasNoRoomYet(t *testing.T) {
	over(t, overWireLike, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		for {
			d, a := k.connect(t, ln)
			c := d.(*Conn)
			giveBack := takeSendQueue(c.s)
			begun, closed := time.Now(), make(chan struct{})
			await := start(t, func() {
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
				return early || !c.sendWait.Idle()
			})
			giveBack()
			await()
			_, err := a.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			if time.Since(begun) >= flushTime {
				continue // so busy a machine that Close may have given up
			}
			require.False(t, early, "Close returned before the end of the stream was sent")
			c.s.txMu.Lock()
			defer c.s.txMu.Unlock()
			require.NotZero(t, c.finAt.wrs)
			require.True(t, c.s.reached(c.finAt))
			return
		}
	})
}
