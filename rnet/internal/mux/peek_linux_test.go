package mux

import (
	"bufio"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// slowUser waits when a stream is opened. Who polls has the link's receive lock then.
type slowUser struct {
	*end
	slow        atomic.Bool
	waits, goOn chan struct{}
}

func (u *slowUser) Incoming() Incoming {
	if u.slow.Swap(false) {
		close(u.waits)
		<-u.goOn
	}
	return u.end.Incoming()
}

// A Close while Peek copies pieces together, and frees them, knows of what was not read.
func TestACloseWhileAPeekGathersIsAReset(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	u := &slowUser{end: accepted, waits: make(chan struct{}), goOn: make(chan struct{})}
	accepted.user = u
	c, s := open(t, dialed, accepted)
	_, err := c.Write(make([]byte, 2*keepMin))
	require.NoError(t, err)
	inRing := func() bool {
		s.recv.mu.Lock()
		defer s.recv.mu.Unlock()
		head := s.recv.queue.head
		return head != nil && head.inRing
	}
	dropped := func() bool {
		s.recv.mu.Lock()
		defer s.recv.mu.Unlock()
		return s.recv.dropped
	}
	hang.Eventually(t, "a piece in the ring", func() bool { accepted.pollLock.Look(); return inRing() })
	u.slow.Store(true)
	_, err = dialed.open()
	require.NoError(t, err)
	polled := hang.Start(t, func() {
		for len(accepted.opened) == 0 {
			accepted.pollLock.Look()
		}
	})
	<-u.waits
	peeked := hang.Start(t, func() { s.Peek(1) })
	hang.Eventually(t, "the copy", func() bool { return !inRing() })
	closed := hang.Start(t, func() { assert.NoError(t, s.Close(-1)) })
	hang.Eventually(t, "the Close", dropped)
	close(u.goOn)
	closed()
	peeked()
	polled()
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestAPeekBeyondTheSessionWindowFails(t *testing.T) {
	_, accepted := carrier{sessionWindow: MinSessionWindow}.pair(t)
	s := new(Stream)
	s.init(accepted.Mux)
	_, err := s.Peek(MinSessionWindow - link.MinPiece + 1) // the peer may not use the rest
	require.ErrorIs(t, err, bufio.ErrBufferFull)
}

// lacksShare returns when the peer has said that it has neither session window nor what is free for a stream, and how
// much of that is unread.
func lacksShare(t *testing.T, accepted *end, s *Stream) (unread int) {
	hang.Eventually(t, "the peer lacks session window", func() bool {
		accepted.pollLock.Look()
		s.recv.mu.Lock()
		defer s.recv.mu.Unlock()
		unread = s.recv.flow.Buffered()
		return s.recv.eager
	})
	return unread
}

// The peer has used up the session window, part of it for a stream that is read then, all of it but less
// than is told without being asked for.
func TestAPeekGetsTheSessionWindowThatOtherStreamsGiveBack(t *testing.T) {
	dialed, accepted := carrier{sessionWindow: MinSessionWindow}.pair(t)
	other, farOther := open(t, dialed, accepted)
	c, s := open(t, dialed, accepted)
	const size = MinSessionWindow / 8
	require.NoError(t, writeAll(other, size))
	written := hang.Start(t, func() { assert.NoError(t, writeAll(c, MinSessionWindow)) })
	unread := lacksShare(t, accepted, s)
	peeked := hang.Start(t, func() {
		_, err := s.Peek(unread + 1)
		assert.NoError(t, err)
	})
	hang.Eventually(t, "a Peek that waits", func() bool { return !s.recv.wait.Idle() })
	require.NoError(t, readAll(farOther, size))
	peeked()
	require.Zero(t, accepted.share.starving.Load())
	require.NoError(t, readAll(s, MinSessionWindow))
	written()
}

// Others hold all of the session window. What a stream may hold besides comes to a Peek that waits for it, though
// little of what was before it was read.
func TestAPeekGetsTheMinimumOfItsStream(t *testing.T) {
	const size, read, more = StreamMinimum, StreamMinimum / 4, StreamMinimum / 8
	for name, peekFirst := range map[string]bool{"the peer is told at once": true, "the peer waits already": false} {
		t.Run(name, func(t *testing.T) {
			dialed, accepted := carrier{sessionWindow: MinSessionWindow}.pair(t)
			hog, farHog := open(t, dialed, accepted)
			hogged := hang.Start(t, func() { assert.NoError(t, writeAll(hog, 2*MinSessionWindow)) })
			lacksShare(t, accepted, farHog)
			c, s := open(t, dialed, accepted)
			require.NoError(t, writeAll(c, size))
			require.NoError(t, readAll(s, read))
			peek := func() (await func()) {
				return hang.Start(t, func() {
					_, err := s.Peek(size - read + more)
					assert.NoError(t, err)
				})
			}
			var peeked func()
			if peekFirst {
				peeked = peek()
				hang.Eventually(t, "a Peek that waits", func() bool { return !s.recv.wait.Idle() })
			}
			written := hang.Start(t, func() { assert.NoError(t, writeAll(c, more)) })
			if !peekFirst {
				lacksShare(t, accepted, s)
				peeked = peek()
			}
			peeked()
			written()
			require.NoError(t, readAll(farHog, 2*MinSessionWindow))
			hogged()
		})
	}
}

// What others read on arrival is given back later, perhaps when nothing comes any more and the owner of the poll
// lock sleeps: it comes to a Peek that needs it then.
func TestAPeekGetsTheSessionWindowThatWasReadOnArrival(t *testing.T) {
	began := time.Now()
	dialed, accepted := carrier{sessionWindow: MinSessionWindow}.pair(t)
	hog, farHog := open(t, dialed, accepted)
	other, farOther := open(t, dialed, accepted)
	c, s := open(t, dialed, accepted)
	write := func(st *Stream, n int) {
		_, err := st.Write(make([]byte, n))
		require.NoError(t, err)
	}
	read := func(st *Stream, n int) {
		_, err := io.ReadFull(st, make([]byte, n))
		require.NoError(t, err)
	}
	write(hog, MinSessionWindow)
	write(c, StreamMinimum)
	gaveUp := hang.Start(t, func() {
		_, err := c.Write(make([]byte, 1))
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
	lacksShare(t, accepted, s)
	require.NoError(t, c.SetWriteDeadline(time.Unix(1, 0)))
	gaveUp()
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	const atOnce = MinSessionWindow/8 - 1 // less than is given back at once
	read(farHog, atOnce+1)
	read(s, StreamMinimum/2) // tells the peer of both
	arrived := hang.Start(t, func() { read(farOther, atOnce) })
	hang.Eventually(t, "a Read that waits", func() bool { return !farOther.recv.wait.Idle() })
	write(other, atOnce)
	arrived()
	written := hang.Start(t, func() { write(c, link.MinPiece) })
	hang.Eventually(t, "the rest of the minimum", func() bool {
		accepted.pollLock.Look()
		s.recv.mu.Lock()
		defer s.recv.mu.Unlock()
		return s.recv.flow.Buffered() == StreamMinimum
	})
	slept := accepted.pollLock.Wakeups.Load()
	waits := hang.Start(t, func() { farOther.Read(make([]byte, 1)) })
	hang.Eventually(t, "a Read that sleeps", func() bool {
		return farOther.recv.wait.Parked() || accepted.pollLock.Wakeups.Load() > slept
	})
	frames, pings := accepted.Link().Stats().Frames, time.Since(began) > link.KeepAlivePeriod/2 // of this machine, which stood still
	_, err := s.Peek(StreamMinimum + 1)
	require.NoError(t, err)
	if !pings {
		require.Equal(t, frames+1, accepted.Link().Stats().Frames, "a ping gave it back")
	}
	written()
	require.NoError(t, farOther.Close(-1))
	waits()
}

func TestAPeekThatWaitsTellsThePeerOnlyWhatIsNews(t *testing.T) {
	dialed, accepted := overNarrow.pair(t)
	c, s := open(t, dialed, accepted)
	const size, piece = MinWindow * 3 / 4, MinWindow / 64
	peeked := hang.Start(t, func() {
		_, err := s.Peek(size)
		assert.NoError(t, err)
	})
	hang.Eventually(t, "a Peek that waits", func() bool { return !s.recv.wait.Idle() })
	for range size / piece {
		_, err := c.Write(make([]byte, piece))
		require.NoError(t, err)
	}
	peeked()
	require.Zero(t, accepted.Stats().WindowsSent, "nothing was read")
}

// What Peek shows at the end of a stream is a copy too: the peer cannot change it, and a Close
// lets nothing of it stay in the ring, where it would hold up the other streams.
func TestPeekAtTheEndOfAStreamLendsNothingOfTheRing(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	c, s := open(t, dialed, accepted)
	_, err := c.Write(make([]byte, keepMin))
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	p, err := s.Peek(keepMin + 1)
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, p, keepMin)
	require.Zero(t, accepted.Link().Stats().Held)
	require.NoError(t, s.Close(-1))
	require.Zero(t, accepted.Link().Stats().Held)
}
