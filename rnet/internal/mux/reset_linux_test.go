package mux

import (
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// A Write that is a frame, and one that is longer, go different ways.
func TestAWriteThatFindsTheLinkStoppedTellsTheReset(t *testing.T) {
	for _, size := range []int{1, 1 << 20} {
		dialed, accepted := overSoft.pair(t)
		c, _ := open(t, dialed, accepted)
		dialed.out.mu.Lock()
		dialed.link.Stop()
		dialed.out.mu.Unlock()
		_, err := c.Write(make([]byte, size))
		require.Equal(t, syscall.ECONNRESET, err, "%d bytes", size)
		_, err = c.Write(make([]byte, size))
		require.Equal(t, syscall.EPIPE, err, "%d bytes", size)
	}
}

// The queue does not move any more, and the loop's goroutine must not wait for that.
func TestALoopsWriteThatFindsTheLinkStoppedDoesNotQueue(t *testing.T) {
	l, _ := onHandLoop(t, overSoft, 2)
	st, other := l.Sinks[0].Stream, (*Stream)(l.Sinks[1].Stream)
	out := &st.m.out
	out.mu.Lock()
	out.blocked.Store(true)
	out.control.push(&other.send, ctlWindow)
	out.link.Stop()
	out.mu.Unlock()
	var err error
	hang.Start(t, func() { _, err = st.Write([]byte("x")) })()
	require.Equal(t, syscall.ECONNRESET, err)
}

// What is unread at a Close may lie in the ring, taken in by nobody: the peer knows of it all the
// same. It still reads what it was sent before.
func TestACloseResetsThePeerOfWhatHasArrivedAndWasNotTakenIn(t *testing.T) {
	for _, k := range []carrier{overSoft, overNarrow, {device: wireLike[0]}, {device: wireLike[1]}} {
		dialed, accepted := k.pair(t)
		for _, closer := range []*end{dialed, accepted} {
			c, s := open(t, dialed, accepted)
			if closer == accepted {
				c, s = s, c
			}
			_, err := c.Write([]byte("before"))
			require.NoError(t, err)
			goOn := stopPolling(t, closer.Mux)
			_, err = s.Write([]byte("unread"))
			require.NoError(t, err)
			closing := hang.Start(t, func() { assert.NoError(t, c.Close(-1)) })
			p := make([]byte, 10)
			n, err := s.Read(p)
			require.NoError(t, err)
			require.Equal(t, "before", string(p[:n]))
			_, err = s.Read(p)
			require.Equal(t, syscall.ECONNRESET, err)
			goOn()
			closing()
			_, err = s.Write(p)
			require.Equal(t, syscall.EPIPE, err)
			require.NoError(t, s.Close(-1))
			hang.Eventually(t, "the end of the stream", func() bool { return dialed.Len() == 0 && accepted.Len() == 0 })
		}
	}
}

// A FIN has gone before: the Close has the rest to say.
func TestACloseAfterCloseWriteTellsWhatWasNotRead(t *testing.T) {
	for _, unread := range []bool{false, true} {
		dialed, accepted := overSoft.pair(t)
		c, s := open(t, dialed, accepted)
		require.NoError(t, c.CloseWrite())
		_, err := s.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		_, err = s.Write([]byte("read"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 10))
		require.NoError(t, err)
		goOn := stopPolling(t, dialed.Mux)
		if unread {
			_, err = s.Write([]byte("unread"))
			require.NoError(t, err)
		}
		require.NoError(t, c.Close(-1))
		goOn()
		hang.Eventually(t, "the end of the stream", func() bool { return dialed.Len() == 0 && accepted.Len() == 0 })
		_, err = s.Write([]byte("first after the Close"))
		if !unread {
			require.NoError(t, err)
			_, err = s.Write([]byte("second"))
		}
		require.Equal(t, syscall.EPIPE, err)
		_, err = s.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	}
}
