package rnet

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

func TestWriteBlocksUntilTheWindowOpens(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		window := int(s.s.mux.Config().Window)
		var n int
		await := hang.Start(t, func() {
			var err error
			n, err = c.Write(make([]byte, window+1))
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		})
		hang.Eventually(t, "window arrived", func() bool { return s.Stats().Unread == window })
		c.SetWriteDeadline(time.Now())
		await()
		require.Equal(t, window, n, "exactly the window")
		c.SetWriteDeadline(time.Time{})
		await = hang.Start(t, func() {
			_, err := c.Write([]byte{1})
			assert.NoError(t, err)
		})
		_, err := io.ReadFull(s, make([]byte, window+1))
		require.NoError(t, err)
		await()
	})
}

func TestBothSidesMayOnlyWrite(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		const streams = 8
		ln := k.listen(t)
		var ends []net.Conn
		for range streams {
			c, s := k.connect(t, ln)
			ends = append(ends, c, s)
		}
		var blocked sync.WaitGroup
		written := make([]int, len(ends))
		for i, end := range ends {
			end.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			blocked.Go(func() {
				buf := make([]byte, 40<<10)
				for err := error(nil); err == nil; {
					traffic.Fill(buf, uint64(i), written[i])
					var n int
					n, err = end.Write(buf)
					written[i] += n
					if err != nil {
						assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
					}
				}
			})
		}
		hang.Start(t, blocked.Wait)()
		// And now everything is read: nothing was lost, nothing stands still.
		var reading sync.WaitGroup
		for i, end := range ends {
			from := i ^ 1 // the other end
			reading.Go(func() {
				assert.NoError(t, traffic.Read(end, traffic.NewRand(uint64(i)), uint64(from), written[from], 50<<10))
				end.SetWriteDeadline(time.Time{})
				_, err := end.Write([]byte("on"))
				assert.NoError(t, err)
				_, err = io.ReadFull(end, make([]byte, 2))
				assert.NoError(t, err)
			})
		}
		hang.Start(t, reading.Wait)()
	})
}

// A stream that nobody reads holds its window, in ordinary memory if need be.
func TestUnreadStreamStopsNoOther(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		const each = 1 << 20
		others := orRaced(63, 15)
		ln := k.listen(t)
		lazy, unread := k.connect(t, ln)
		fill := hang.Start(t, func() { // ends with the test
			traffic.Write(lazy, traffic.NewRand(1), 1, each, 32<<10)
		})
		awaitFullWindow(t, lazy.(*Conn))
		var busy sync.WaitGroup
		for i := range others {
			c, s := k.connect(t, ln)
			busy.Go(func() {
				assert.NoError(t, traffic.Write(c, traffic.NewRand(uint64(i)), uint64(i), each, 32<<10))
			})
			busy.Go(func() {
				assert.NoError(t, traffic.Read(s, traffic.NewRand(uint64(i)), uint64(i), each, 48<<10))
			})
		}
		hang.Start(t, busy.Wait)()
		window := int(unread.(*Conn).s.mux.Config().Window)
		require.Equal(t, window, unread.(*Conn).Stats().Unread)
		if !k.dedicated {
			require.Same(t, unread.(*Conn).s, ln.(*Listener).anySession(), "all on one session")
			if window > keepMin { // smaller pieces do not stay in the ring anyway
				require.NotZero(t, unread.(*Conn).s.mux.Link().Stats().MovedOut, "its data was in the way")
			}
		}
		require.NoError(t, traffic.Read(unread, traffic.NewRand(1), 1, each, 48<<10))
		fill()
	})
}

// anySession returns one of the listener's sessions.
func (l *Listener) anySession() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.sessions {
		return s
	}
	return nil
}

func TestManyWritersOfOneNarrowSessionAllProceed(t *testing.T) {
	const streams, each = 100, 64 << 10
	ln := overNarrow.listen(t)
	var work sync.WaitGroup
	for i := range streams {
		c, s := overNarrow.connect(t, ln)
		seed := uint64(i)
		work.Go(func() {
			rnd := traffic.NewRand(seed)
			for at := 0; at < each; { // deadlines take writers out of the line
				c.SetWriteDeadline(time.Now().Add(time.Duration(rnd.IntN(2000)) * time.Microsecond))
				p := make([]byte, min(each-at, 1+rnd.IntN(8<<10)))
				traffic.Fill(p, seed, at)
				n, err := c.Write(p)
				at += n
				if err != nil && !assert.ErrorIs(t, err, os.ErrDeadlineExceeded) {
					return
				}
			}
			c.SetWriteDeadline(time.Time{})
		})
		work.Go(func() { assert.NoError(t, traffic.Read(s, traffic.NewRand(seed+1), seed, each, 8<<10)) })
	}
	hang.Start(t, work.Wait)()
}

func TestAShortWriteDoesNotComeIntoTheMiddleOfALongOne(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		const short = "0123456"
		shorts := orRaced(20_000, 4000)
		long := bytes.Repeat([]byte{'x'}, 3*int(s.s.mux.Config().Window))
		wrote := hang.Start(t, func() {
			var both sync.WaitGroup
			both.Go(func() {
				_, err := c.Write(long)
				assert.NoError(t, err)
			})
			both.Go(func() {
				for range shorts {
					_, err := c.Write([]byte(short))
					assert.NoError(t, err)
				}
			})
			both.Wait()
		})
		got := make([]byte, len(long)+shorts*len(short))
		_, err := io.ReadFull(s, got)
		require.NoError(t, err)
		wrote()
		at := bytes.IndexByte(got, 'x')
		require.Zero(t, at%len(short))
		require.True(t, bytes.HasPrefix(got[at:], long), "the long Write has been cut")
		require.Equal(t, strings.Repeat(short, shorts), string(got[:at])+string(got[at+len(long):]))
	})
}

func TestBytesGoRound(t *testing.T) {
	leak.Check(t)
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		_, err := c.Write([]byte("ping"))
		require.NoError(t, err)
		buf := make([]byte, 4)
		_, err = io.ReadFull(s, buf)
		require.NoError(t, err)
		require.Equal(t, "ping", string(buf))
		_, err = s.Write([]byte("pong"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, buf)
		require.NoError(t, err)
		require.Equal(t, "pong", string(buf))
	})
}
