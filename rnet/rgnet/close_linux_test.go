package rgnet

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

// kept returns how many streams the loops of an engine keep, closed ones that
// have something to send included.
func (s *served) kept(t testing.TB) int {
	t.Helper()
	v, ok := engines.Load(s.engine)
	require.True(t, ok)
	total := 0
	for _, l := range v.(*bridge).allLoops() {
		n := make(chan int, 1)
		require.NoError(t, l.post(task{kind: taskRun, run: func() error { n <- len(l.conns); return nil }}))
		total += hang.Receive(t, n, "the loop answers")
	}
	return total
}

// What a peer does not take is thrown away soon after the connection was closed,
// and the peer learns that it did not get everything.
func TestAClosedConnectionDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	const size = 16 << 20
	ways := map[string]struct {
		linger int
		then   func(c gnet.Conn)
	}{
		"a second":                   {linger: -1},
		"two, as SetLinger says":     {linger: 2},
		"until it is closed again":   {linger: 3600, then: func(c gnet.Conn) { c.Close() }},
		"until its loop is asked to": {linger: 3600, then: func(c gnet.Conn) { c.EventLoop().Close(c) }},
	}
	for _, k := range streamCarriers {
		t.Run(k.name, func(t *testing.T) {
			for name, way := range ways {
				t.Run(name, func(t *testing.T) {
					var begin time.Time
					closed := make(chan gnet.Conn, 2)
					s := k.serve(t, &script{
						traffic: func(c gnet.Conn) gnet.Action {
							c.Discard(-1)
							c.SetLinger(way.linger)
							c.Write(noise(size))
							begin = time.Now()
							return gnet.Close
						},
						close: func(c gnet.Conn, _ error) gnet.Action { closed <- c; return gnet.None },
					})
					hang.Receive(t, closed, "awaitListener's closes")
					c := k.dial(t, s.address)
					_, err := c.Write([]byte("x"))
					require.NoError(t, err)
					gone := hang.Receive(t, closed, "OnClose is called")
					if way.then != nil {
						require.Equal(t, 1, s.kept(t))
						l := gone.(*conn).l
						require.NoError(t, l.post(task{kind: taskRun, run: func() error { way.then(gone); return nil }}))
					}
					hang.Eventually(t, "nothing is kept", func() bool { return s.kept(t) == 0 })
					if way.then == nil {
						require.GreaterOrEqual(t, time.Since(begin), time.Second, "it had its time")
					}
					n, err := io.Copy(io.Discard, c)
					require.Less(t, n, int64(size))
					require.Error(t, err)
					require.False(t, errors.Is(err, io.EOF))
				})
			}
		})
	}
}

// What a handler was never told of, because it has closed the connection, is lost,
// and the peer learns it as it does over TCP.
func TestCloseBeforeAllWasHandledResets(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		s := k.serve(t, &script{
			traffic: func(c gnet.Conn) gnet.Action { return gnet.Close },
		}, gnet.WithReadBufferCap(1024))
		c := k.dial(t, s.address)
		_, err := c.Write(noise(4000))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// So is what comes after the Close, while the rest of the answer waits for room.
func TestWhatComesWhileAClosedConnectionSendsResets(t *testing.T) {
	const size = 4 << 20 // more than the window: the rest follows when the peer has read, and so after "more"
	for _, k := range streamCarriers {
		t.Run(k.name, func(t *testing.T) {
			closed := make(chan error, 2)
			s := k.serve(t, &script{
				traffic: func(c gnet.Conn) gnet.Action {
					c.Discard(-1)
					c.SetLinger(int(hang.Time.Seconds()))
					c.Write(noise(size))
					return gnet.Close
				},
				close: func(_ gnet.Conn, err error) gnet.Action { closed <- err; return gnet.None },
			})
			hang.Receive(t, closed, "awaitListener's closes")
			c := k.dial(t, s.address)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			hang.Receive(t, closed, "OnClose is called")
			_, err = c.Write([]byte("more"))
			require.NoError(t, err)
			n, err := io.Copy(io.Discard, c)
			require.EqualValues(t, size, n)
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

// Programs compare what Write returns with EPIPE.
func TestAWriteThatFailsReturnsTheErrno(t *testing.T) {
	for _, k := range []carrier{overTCP, soft} {
		t.Run(k.name, func(t *testing.T) {
			entered, reset := make(chan struct{}, 2), make(chan struct{})
			failed, closed := make(chan error, 2), make(chan error, 2)
			s := k.serve(t, &script{
				traffic: func(c gnet.Conn) gnet.Action {
					c.Discard(-1)
					entered <- struct{}{}
					<-reset
					if _, err := c.Write([]byte("x")); err != nil { // a stream is told of the reset with "y"
						failed <- err
					}
					return gnet.None
				},
				close: func(_ gnet.Conn, err error) gnet.Action { closed <- err; return gnet.None },
			})
			hang.Receive(t, closed, "OnClose is called") // awaitListener's
			c := k.dial(t, s.address)
			c.Write([]byte("x"))
			hang.Receive(t, entered, "OnTraffic is called")
			c.Write([]byte("y"))
			c.(interface{ SetLinger(int) error }).SetLinger(0)
			c.Close()
			close(reset)
			require.IsType(t, syscall.ECONNRESET, hang.Receive(t, failed, "Write fails"))
			require.IsType(t, (*os.SyscallError)(nil), hang.Receive(t, closed, "OnClose is called"))
		})
	}
}
