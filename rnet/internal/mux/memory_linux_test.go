package mux

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// heldMemory returns how much memory the unread data of a stream takes, beside the ring.
func heldMemory(st *Stream) (n int) {
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	for k := st.recv.queue.head; k != nil; k = k.next {
		if !k.inRing {
			n += cap(k.buf)
		}
	}
	return n
}

// The reader was at the piece when the link needed its room, and no more comes until it has that.
func TestAPieceThatIsReadInPartDoesNotHoldUpTheRing(t *testing.T) {
	for name, read := range map[string]func(s *Stream) (int, error){
		"Read":    func(s *Stream) (int, error) { return s.Read(make([]byte, 1)) },
		"Discard": func(s *Stream) (int, error) { return s.Discard(1) },
	} {
		dialed, accepted := carrier{ringSize: link.MinRing}.pair(t)
		c, s := open(t, dialed, accepted)
		other, far := open(t, dialed, accepted)
		pattern := patternOf(c.id, 0, keepMin)
		_, err := c.Write(pattern)
		require.NoError(t, err)
		setBusy := func(busy bool) (ok bool) { // as take, and peek
			s.recv.mu.Lock()
			defer s.recv.mu.Unlock()
			head := s.recv.queue.head
			if ok = head != nil && head.inRing; ok {
				head.busy = busy
			}
			return ok
		}
		hang.Eventually(t, "a piece in the ring", func() bool { accepted.pollLock.Look(); return setBusy(true) })
		const size = 4 * link.MinRing
		written := hang.Start(t, func() { assert.NoError(t, writeAll(other, size)) })
		hang.Eventually(t, "a full ring", func() bool {
			accepted.pollLock.Look()
			dialed.out.mu.Lock()
			defer dialed.out.mu.Unlock()
			return other.send.waits(roomLink) && accepted.Link().Stats().Held > link.MinRing/2
		})
		require.True(t, setBusy(false))
		n, err := read(s)
		require.NoError(t, err, name)
		require.Equal(t, 1, n)
		require.LessOrEqual(t, accepted.Link().Stats().Held, link.MinRing/2, name)
		require.NoError(t, readAll(far, size))
		written()
		rest := make([]byte, len(pattern)-1)
		_, err = io.ReadFull(s, rest)
		require.NoError(t, err)
		require.Equal(t, pattern[1:], rest)
	}
}

// What a peer has sent and nobody reads is bounded, and the memory for it is, however much was read of the frames
// before: of a large one that has left the ring all but a byte, or of one that leaves it after that.
func TestLittleThatIsUnreadTakesLittleMemory(t *testing.T) {
	const streams, size = 16, 16 << 10
	for _, readFirst := range []bool{true, false} {
		dialed, accepted := carrier{ringSize: link.MinRing}.pair(t)
		readMost := func(s *Stream) {
			_, err := io.ReadFull(s, make([]byte, size-1))
			require.NoError(t, err)
		}
		var far []*Stream
		for range streams {
			c, s := open(t, dialed, accepted)
			written := hang.Start(t, func() { c.Write(make([]byte, size)) })
			hang.Eventually(t, "all of it", func() bool {
				accepted.pollLock.Look()
				s.recv.mu.Lock()
				defer s.recv.mu.Unlock()
				return s.recv.flow.Arrived() == size
			})
			written()
			if far = append(far, s); readFirst {
				readMost(s)
			}
		}
		require.NotZero(t, accepted.Link().Stats().MovedOut)
		for _, s := range far {
			if !readFirst {
				readMost(s)
			}
			require.LessOrEqual(t, heldMemory(s), keepMin)
			n, err := s.Read(make([]byte, 2))
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
	}
}
