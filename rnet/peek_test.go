package rnet

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

func TestFailedPeekHoldsUpNobody(t *testing.T) {
	ln := overSoft.listen(t)
	_, peeking := overSoft.connect(t, ln)
	writing, reading := overSoft.connect(t, ln)
	peeker := peeking.(*Conn)

	from := otherEnd(t, peeker)
	_, err := from.Write(traffic.Bytes(1, 8<<10))
	require.NoError(t, err)
	_, err = peeker.Peek(1)
	require.NoError(t, err)
	require.NoError(t, peeker.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = peeker.Peek(100 << 10)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, peeker.Close())

	const size = 8 << 20 // many times the ring
	sent := hang.Start(t, func() { traffic.Write(writing, traffic.NewRand(2), 3, size, 64<<10) })
	require.NoError(t, traffic.Read(reading, traffic.NewRand(4), 3, size, 64<<10))
	sent()
}

// otherEnd returns the other end of c, in this process.
func otherEnd(t *testing.T, c *Conn) *mux.Stream {
	t.Helper()
	for _, s := range liveSessions.list() {
		for _, other := range s.mux.SomeStreams(mux.MaxStreams) {
			if other.ID() == c.st.ID() && s.mux.Config().Dialed && s.mux.Token() == c.s.mux.Peer().Token {
				return other
			}
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

// Another goroutine may close a connection while one looks at what Peek gave it.
func TestPeekedBytesOutliveAClose(t *testing.T) {
	leak.Check(t)
	over(t, softCarriers, func(t *testing.T, k carrier) {
		for _, size := range []int{100, keepMin, maxPayload} {
			ln := k.listen(t)
			c, accepted := k.connect(t, ln)
			s := accepted.(*Conn)
			size = min(size, int(s.s.mux.Config().Window))
			for _, ends := range [][2]*Conn{{c.(*Conn), s}, {s, c.(*Conn)}} {
				require.NoError(t, traffic.Write(ends[0], traffic.NewRand(1), 7, size, size))
			}
			fromDialer, err := s.Peek(size)
			require.NoError(t, err)
			fromAcceptor, err := c.(*Conn).Peek(size)
			require.NoError(t, err)
			hang.Start(t, func() { s.Close(); c.Close() })()

			writing, reading := k.connect(t, ln) // writes over all that was freed
			const total = 2 << 20
			sent := hang.Start(t, func() { traffic.Write(writing, traffic.NewRand(1), 8, total, orRaced(200, 2000)) })
			require.NoError(t, traffic.Read(reading, traffic.NewRand(2), 8, total, 64<<10))
			sent()
			require.NoError(t, traffic.Check(fromDialer, 7, 0))
			require.NoError(t, traffic.Check(fromAcceptor, 7, 0))
			for _, end := range []*Conn{s, c.(*Conn)} {
				_, err = end.Peek(1)
				require.ErrorIs(t, err, net.ErrClosed)
			}
		}
	})
}

// What is peeked does not keep the peer's windows from coming: they have nothing but the ring.
func TestAWriteGoesOnBesideWhatIsPeeked(t *testing.T) {
	leak.Check(t)
	k := carrier{name: "dedicated", transport: Soft, dedicated: true, limits: Limits{RingSize: minRingSize}}
	c, s := k.streams(t)
	_, err := s.Write(make([]byte, keepMin))
	require.NoError(t, err)
	p, err := c.Peek(1)
	require.NoError(t, err)
	const size = 1 << 20 // more than a window
	write := func(end *Conn, most int) (await func()) {
		return hang.Start(t, func() { assert.NoError(t, traffic.Write(end, traffic.NewRand(1), 7, size, most)) })
	}
	fromAcceptor := write(s, 16) // until the ring is full to the last byte
	fromDialer := write(c, maxPayload)
	for before := uint64(0); ; {
		now := c.st.Stats().BytesIn
		if now > keepMin && now == before {
			break
		}
		before = now
		time.Sleep(20 * time.Millisecond)
	}
	hang.Start(t, func() { assert.NoError(t, traffic.Read(s, traffic.NewRand(2), 7, size, maxPayload)) })()
	fromDialer()
	_, err = c.Discard(len(p))
	require.NoError(t, err)
	require.NoError(t, traffic.Read(c, traffic.NewRand(2), 7, size, maxPayload))
	fromAcceptor()
}
