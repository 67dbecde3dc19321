package mux

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// A Close while f looks at the data does not give its memory to another stream. What f does
// not take then is lost, and the peer told.
func TestWhatShowShowsStaysWhereItIs(t *testing.T) {
	for _, size := range []int{4, 2 * keepMin} {
		dialed, accepted := overSoft.pair(t)
		c, s := open(t, dialed, accepted)
		_, err := c.Write(make([]byte, size))
		require.NoError(t, err)
		_, err = s.Read(make([]byte, size)) // which is over
		require.NoError(t, err)
		_, err = c.Write(make([]byte, size))
		require.NoError(t, err)
		err = s.Show(atOnce(), func(data []byte, _ error) (int, bool) {
			if len(data) == 0 {
				return 0, false
			}
			require.NoError(t, s.Close(-1))
			for range 100 {
				k := NewChunk(len(data))
				require.NotEqual(t, unsafe.Pointer(unsafe.SliceData(data)), unsafe.Pointer(unsafe.SliceData(k.buf)))
			}
			return 0, true
		})
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "%d bytes", size)
	}
}

// atOnce has Show call its function at once.
func atOnce() *int {
	left := -1
	return &left
}

// As long as f takes, the other streams go on.
func TestAFunctionOfShowThatWaitsHoldsUpNobody(t *testing.T) {
	dialed, accepted := overNarrow.pair(t)
	c, s := open(t, dialed, accepted)
	_, err := c.Write(make([]byte, keepMin))
	require.NoError(t, err)
	shown, goOn := make(chan struct{}), make(chan struct{})
	await := hang.Start(t, func() {
		assert.NoError(t, s.Show(atOnce(), func(data []byte, _ error) (int, bool) {
			if len(data) == 0 {
				return 0, false
			}
			close(shown)
			<-goOn
			return len(data), true
		}))
	})
	<-shown
	other, far := open(t, dialed, accepted)
	const size = 4 * link.MinRing
	written := hang.Start(t, func() { assert.NoError(t, writeAll(other, size)) })
	hang.Start(t, func() { assert.NoError(t, readAll(far, size)) })()
	written()
	close(goOn)
	await()
}

// A Show that finds the stream closed, at its end, leaves nothing behind.
func TestShowThatEndsWithAClosedStreamKeepsNothing(t *testing.T) {
	for range 20 {
		dialed, accepted := overSoft.pair(t)
		c, s := open(t, dialed, accepted)
		_, err := c.Write(make([]byte, keepMin))
		require.NoError(t, err)
		shown := make(chan struct{}, 1)
		await := hang.Start(t, func() {
			assert.ErrorIs(t, s.Show(atOnce(), func(data []byte, _ error) (int, bool) {
				if len(data) > 0 {
					shown <- struct{}{}
				}
				return 0, false
			}), net.ErrClosed)
		})
		<-shown
		time.Sleep(5 * time.Millisecond) // it waits for more
		r := &s.recv
		r.mu.Lock()
		r.wake()
		time.Sleep(2 * time.Millisecond) // it waits for mu
		closed := hang.Start(t, func() { assert.NoError(t, s.Close(-1)) })
		hang.Eventually(t, "the Close", s.closed.Load)
		time.Sleep(2 * time.Millisecond)
		r.err = io.EOF // as noMoreComes
		r.mu.Unlock()
		await()
		closed()
		require.Zero(t, accepted.Link().Stats().Held)
		require.Nil(t, r.queue.head)
	}
}

// The first Write after the peer's Close takes what it is given, and ends the half: the peer has nothing more
// to say of it.
func TestAWriteToNobodyEndsTheWaitForAnother(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	open(t, dialed, accepted) // without a stream the session would end after a while
	c, s := open(t, dialed, accepted)
	require.NoError(t, s.Close(-1))
	_, err := c.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	was := c.WriteState()
	require.False(t, was.Ended)
	awaited := hang.Start(t, func() { assert.NoError(t, c.AwaitWrite(was)) })
	hang.Eventually(t, "a wait", func() bool {
		a := c.send.awaiting.Load()
		return a != nil && !a.wait.Idle()
	})
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	awaited()
	require.True(t, c.WriteState().Ended)
}
