package rnet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// halfCloser is what *net.TCPConn and *Conn have in common beside net.Conn.
type halfCloser interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetNoDelay(bool) error
	SetKeepAlive(bool) error
	SetKeepAlivePeriod(time.Duration) error
	SetKeepAliveConfig(net.KeepAliveConfig) error
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}

var (
	_ halfCloser = (*net.TCPConn)(nil)
	_ halfCloser = (*Conn)(nil)
)

// ends is pair with the methods of a TCP connection.
func (k carrier) ends(t testing.TB) (dialed, accepted halfCloser) {
	d, a := k.pair(t)
	return d.(halfCloser), a.(halfCloser)
}

func TestCloseWriteEndsOneHalf(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		for _, end := range []struct{ closing, other halfCloser }{{c, s}, {s, c}} {
			_, err := end.closing.Write([]byte("last words"))
			require.NoError(t, err)
			require.NoError(t, end.closing.CloseWrite())
			got, err := io.ReadAll(end.other)
			require.NoError(t, err)
			require.Equal(t, "last words", string(got))
			n, err := end.other.Read(make([]byte, 1))
			require.Zero(t, n)
			require.True(t, err == io.EOF, "io.EOF itself, not %v", err)
			_, err = end.closing.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.EPIPE)
		}
	})
}

func TestDataFlowsAfterTheOtherHalfEnded(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		require.NoError(t, c.CloseWrite())
		_, err := s.Read(make([]byte, 1))
		require.True(t, err == io.EOF)
		data := traffic.Bytes(1, 3<<20) // several windows
		await := hang.Start(t, func() {
			_, err := s.Write(data)
			assert.NoError(t, err)
			assert.NoError(t, s.CloseWrite())
		})
		got, err := io.ReadAll(c)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		await()
	})
}

func TestCloseWriteAgainChangesNothing(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		require.NoError(t, c.CloseWrite())
		require.NoError(t, c.CloseWrite())
		require.NoError(t, s.CloseWrite())
		_, err := c.Read(make([]byte, 1))
		require.True(t, err == io.EOF)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	})
}

func TestCloseWriteEndsABlockedWrite(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, _ := k.ends(t)
		await := hang.Start(t, func() {
			_, err := c.Write(make([]byte, 64<<20))
			assert.ErrorIs(t, err, syscall.EPIPE)
		})
		awaitFullWindow(t, c.(*Conn))
		require.NoError(t, c.CloseWrite())
		await()
	})
}

func TestCloseReadEndsReadsBehindWhatHasArrived(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		_, err := s.Write([]byte("first"))
		require.NoError(t, err)
		buf := make([]byte, 100)
		_, err = io.ReadFull(c, buf[:1])
		require.NoError(t, err)
		require.NoError(t, c.CloseRead())
		n, err := c.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "irst", string(buf[:n]))
		for range 2 {
			_, err = c.Read(buf)
			require.True(t, err == io.EOF, "%v", err)
		}
		_, err = c.Write([]byte("still writing"))
		require.NoError(t, err)
		_, err = io.ReadFull(s, buf[:13])
		require.NoError(t, err)
	})
}

func TestCloseReadEndsABlockedRead(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, _ := k.ends(t)
		await := hang.Start(t, func() {
			n, err := c.Read(make([]byte, 1))
			assert.Zero(t, n)
			assert.True(t, err == io.EOF, "%v", err)
		})
		time.Sleep(10 * time.Millisecond) // so that it is blocked, most of the time
		require.NoError(t, c.CloseRead())
		await()
	})
}

// A program that calls CloseRead and goes on to Read gets all, as with TCP, so
// the window shuts if it does not.
func TestPeerOfCloseReadIsHeldBackByItsWindow(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		require.NoError(t, c.CloseRead())
		const size = 4 << 20
		wrote := hang.Start(t, func() {
			_, err := s.Write(make([]byte, size))
			assert.NoError(t, err)
		})
		awaitFullWindow(t, s.(*Conn))
		buf := make([]byte, 64<<10)
		for got := 0; got < size; {
			n, err := c.Read(buf)
			if err != io.EOF { // where nothing has arrived yet
				require.NoError(t, err)
			}
			got += n
		}
		wrote()
	})
}

// awaitFullWindow waits until c can send no more.
func awaitFullWindow(t testing.TB, c *Conn) {
	t.Helper()
	hang.Eventually(t, "window full", func() bool { return c.Stats().SendWindow == 0 })
}

func TestEitherSideMayEndFirst(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		for i := range 20 {
			c, s := k.connect(t, ln)
			first, second := c.(halfCloser), s.(halfCloser)
			if i%2 == 0 {
				first, second = second, first
			}
			require.NoError(t, first.CloseWrite())
			_, err := second.Read(make([]byte, 1))
			require.True(t, err == io.EOF, "%v", err)
			_, err = second.Write([]byte("last words"))
			require.NoError(t, err)
			require.NoError(t, second.Close())
			got, err := io.ReadAll(first)
			require.NoError(t, err)
			require.Equal(t, "last words", string(got))
			require.NoError(t, first.Close())
		}
	})
}

func TestPeerLearnsOfACloseAfterCloseWrite(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		require.NoError(t, c.CloseWrite())
		_, err := s.Read(make([]byte, 1))
		require.True(t, err == io.EOF, "%v", err)
		await := hang.Start(t, func() {
			_, err := s.Write(make([]byte, 64<<20))
			assert.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
		})
		require.NoError(t, c.Close())
		await()
	})
}
