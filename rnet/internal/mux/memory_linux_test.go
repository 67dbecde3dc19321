package mux

import (
	"io"
	"testing"

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
		require.NotZero(t, accepted.Stats().Link.MovedOut)
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
