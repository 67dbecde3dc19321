package mux

import (
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// The peer gives no credit for a while: when it does, the FINs have to go out, though nobody of ours waits for
// anything.
func TestACloseThatFindsNoRoomArmsForTheCredit(t *testing.T) {
	dialed, accepted := overNarrow.pair(t)
	streams := make([]*Stream, 4000)
	for i := range streams {
		streams[i], _ = open(t, dialed, accepted)
	}
	c, s := open(t, dialed, accepted)
	hang.Eventually(t, "a queue that nobody looks after", func() bool {
		_, err := s.Write([]byte{1})
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
		return dialed.pollLock.Unattended()
	})
	require.NoError(t, s.Close(-1))
	require.NoError(t, c.Close(-1))
	goOn := stopPolling(t, accepted.Mux)
	for _, c := range streams {
		require.NoError(t, c.Close(-1))
	}
	require.True(t, dialed.out.blocked.Load(), "all FINs had room")
	require.False(t, dialed.pollLock.Unattended())
	goOn()
	hang.Eventually(t, "the ends of the streams", func() bool { return dialed.Len() == 0 && accepted.Len() == 0 })
}

// A peer that takes nothing in keeps no stream that we have closed: its slot may be used again, many
// times over, and each of the peer's streams ends as its own did.
func TestACloseEndsTheStreamWithoutAnAnswer(t *testing.T) {
	for _, k := range []carrier{overSoft, overNarrow} {
		dialed, accepted := k.pair(t)
		keep, _ := open(t, dialed, accepted) // without a stream the session would end after a while
		_, s := open(t, dialed, accepted)
		goOn := stopPolling(t, dialed.Mux)
		require.NoError(t, s.Close(-1))
		require.Equal(t, 1, accepted.Len())
		goOn()
		hang.Eventually(t, "the end of the stream", func() bool { return dialed.Len() == 1 })

		goOn = stopPolling(t, accepted.Mux)
		const streams = 600 // more than there are slots with an address
		for i := range streams {
			c, err := dialed.open()
			require.NoError(t, err)
			_, err = c.Write([]byte{byte(i)})
			require.NoError(t, err)
			require.NoError(t, c.Close(-1))
			require.Equal(t, 1, dialed.Len())
		}
		goOn()
		for i := range streams {
			s := hang.Receive(t, accepted.opened, "a stream")
			p := make([]byte, 2)
			n, err := s.Read(p)
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i)}, p[:n])
			_, err = s.Read(p)
			require.Equal(t, io.EOF, err)
			_, err = s.Write(p)
			require.NoError(t, err, "the first after the peer's Close")
			require.NoError(t, s.Close(-1))
		}
		require.Equal(t, 1, accepted.Len())
		require.NoError(t, keep.Close(-1))
	}
}

// Whoever closes while a Read is under way knows what that will take, and that the rest is lost: the peer
// gets a reset.
func TestACloseBesideAReadDoesNotSayThatAllWasRead(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	open(t, dialed, accepted)    // without a stream the session would end after a while
	data := make([]byte, 48<<10) // stays in the ring, from which it is copied without a lock
	for range 2000 {
		c, s := open(t, dialed, accepted)
		_, err := c.Write(data)
		require.NoError(t, err)
		var n int
		read := hang.Start(t, func() { n, _ = s.Read(make([]byte, len(data)-1)) }) // ended by the data, or Close
		for range rand.IntN(30000) {
			runtime.KeepAlive(data)
		}
		require.NoError(t, s.Close(-1))
		read()
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "%d of %d bytes were read", n, len(data))
		require.NoError(t, c.Close(-1))
	}
}

// toAStoppedPeer returns a stream, and more others than a peer that has stopped polling has room for the ends of.
// It polls again when goOn is called.
func toAStoppedPeer(t *testing.T) (dialed *end, c *Stream, others []*Stream, goOn func()) {
	t.Helper()
	dialed, accepted := overNarrow.pair(t)
	c, _ = open(t, dialed, accepted)
	others = make([]*Stream, 2500)
	for i := range others {
		others[i], _ = open(t, dialed, accepted)
	}
	return dialed, c, others, stopPolling(t, accepted.Mux)
}

// The peer gives credit after a Close has waited in vain, and a Write that gives up finds it before the owner
// of the poll lock has told of it: the next Close that finds no room waits again.
func TestACloseWaitsAgainAfterThePeerHasGoneOn(t *testing.T) {
	dialed, c, others, goOn := toAStoppedPeer(t)
	for _, other := range others[1:] {
		require.NoError(t, other.Close(0))
	}
	require.NoError(t, others[0].Close(-1))
	left := func() time.Duration {
		dialed.out.mu.Lock()
		defer dialed.out.mu.Unlock()
		return dialed.out.patience.left(time.Now())
	}
	require.Less(t, left(), FlushTime/2, "there was room")
	_, result, err := dialed.out.send(&c.send, []byte{1}, nil, 0)
	require.NoError(t, err)
	require.Equal(t, sendRoom, result)
	hang.Eventually(t, "the poll lock", func() bool {
		return dialed.pollLock.Do(func() {
			goOn()
			hang.Eventually(t, "credit", func() bool {
				dialed.link.Poll()
				dialed.out.leaveQueue(&c.send)
				return !dialed.out.blocked.Load()
			})
		})
	})
	require.Equal(t, FlushTime, left())
}

// While a Close waits for room, what else writes to the stream learns at once that it is closed.
func TestACloseThatWaitsKeepsNoWriteWaiting(t *testing.T) {
	dialed, c, others, goOn := toAStoppedPeer(t)
	t.Cleanup(func() { goOn() })
	for _, other := range others {
		require.NoError(t, other.Close(0))
	}
	require.True(t, dialed.out.blocked.Load(), "all RESETs had room")
	var beside [4]func()
	for i := range beside { // one of them waits for room, and the others for that one
		beside[i] = hang.Start(t, func() {
			_, err := c.Write(make([]byte, MinWindow)) // ended by Close
			assert.ErrorIs(t, err, net.ErrClosed)
		})
	}
	hang.Eventually(t, "a Write that waits", c.send.wait.Parked)
	var closed atomic.Bool
	closing := hang.Start(t, func() { // ended by the credit
		assert.NoError(t, c.Close(100))
		closed.Store(true)
	})
	for i := range beside {
		beside[i]()
	}
	hang.Eventually(t, "a Close that waits", c.send.wait.Parked)
	for name, call := range map[string]func() error{
		"Write":      func() error { _, err := c.Write(make([]byte, 1)); return err },
		"Reserve":    func() error { _, err := c.Reserve(1); return err },
		"AwaitWrite": func() error { return c.AwaitWrite(c.WriteState()) },
	} {
		hang.Start(t, func() { assert.ErrorIs(t, call(), net.ErrClosed, name) })() // ended by its look at Closed
	}
	require.False(t, closed.Load(), "there was room")
	goOn()
	goOn = func() {}
	closing()
}

// A peer that takes one end after the other, each when a Close is about to give up, holds up all of them no
// longer than one that takes none.
func TestClosesOfASessionWaitForASecondTogether(t *testing.T) {
	var p patience
	begin := time.Now()
	now := begin
	var waited time.Duration
	const closes = 1000
	for range closes {
		if left := p.left(now); left >= leastPatience {
			waited += left - 1
			now = now.Add(left - 1)
			p.spend(left - 1)
		}
		now = now.Add(time.Millisecond)
	}
	require.LessOrEqual(t, waited, FlushTime+now.Sub(begin)/10)
}
