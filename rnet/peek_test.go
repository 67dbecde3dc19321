package rnet

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFailedPeekHoldsUpNobody(t *testing.T) {
	ln := overSoft.listen(t)
	_, peeking := overSoft.connect(t, ln)
	writing, reading := overSoft.connect(t, ln)
	peeker := peeking.(*Conn)

	from := otherEnd(t, peeker)
	_, err := from.Write(randomBytes(1, 8<<10))
	require.NoError(t, err)
	_, err = peeker.Peek(1)
	require.NoError(t, err)
	require.NoError(t, peeker.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = peeker.Peek(100 << 10)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, peeker.Close())

	const size = 8 << 20 // many times the ring
	sent := start(t, func() { writePattern(writing, newRand(2), 3, size, 64<<10) })
	require.NoError(t, readPattern(reading, newRand(4), 3, size, 64<<10))
	sent()
}

// otherEnd returns the other end of c, in this process.
func otherEnd(t *testing.T, c *Conn) *Conn {
	t.Helper()
	for _, s := range liveSessions.list() {
		if other := s.streams.get(c.id); other != nil && other != c && s.token == c.s.peer.token {
			return other
		}
	}
	t.Fatal("the other end is gone")
	return nil
}

func TestPeekedPieceCannotBeAppendedTo(t *testing.T) {
	dialed, accepted := overSoft.pair(t)
	_, err := dialed.Write([]byte("abc"))
	require.NoError(t, err)
	p, err := accepted.(*Conn).Peek(1)
	require.NoError(t, err)
	require.Equal(t, len(p), cap(p))
}
