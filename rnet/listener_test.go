package rnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

func typeName(v any) string { return fmt.Sprintf("%T", v) }

var listening = []carrier{overTCP, {name: "auto"}, overSoft}

func TestCloseEndsAccept(t *testing.T) {
	over(t, listening, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		var awaits []func()
		for range 3 {
			awaits = append(awaits, hang.Start(t, func() {
				_, err := ln.Accept()
				assert.ErrorIs(t, err, net.ErrClosed)
				var op *net.OpError
				assert.ErrorAs(t, err, &op)
				assert.Equal(t, "accept", op.Op)
			}))
		}
		time.Sleep(10 * time.Millisecond) // so that they are blocked, most of the time
		require.NoError(t, ln.Close())
		for _, await := range awaits {
			await()
		}
		_, err := ln.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, ln.Close(), net.ErrClosed)
		require.IsType(t, (*net.TCPAddr)(nil), ln.Addr())
	})
}

func TestAcceptHasADeadline(t *testing.T) {
	over(t, listening, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		dl := ln.(interface{ SetDeadline(time.Time) error })
		for _, ahead := range []time.Duration{-time.Second, 20 * time.Millisecond} {
			require.NoError(t, dl.SetDeadline(time.Now().Add(ahead)))
			for range 2 {
				_, err := ln.Accept()
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				var timeout net.Error
				require.ErrorAs(t, err, &timeout)
				require.True(t, timeout.Timeout())
			}
		}
		require.NoError(t, dl.SetDeadline(time.Time{}))
		k.connect(t, ln)

		require.NoError(t, dl.SetDeadline(time.Now().Add(time.Hour)))
		await := hang.Start(t, func() {
			_, err := ln.Accept()
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		})
		require.NoError(t, dl.SetDeadline(time.Now()))
		await()
		require.NoError(t, ln.Close())
		require.ErrorIs(t, dl.SetDeadline(time.Time{}), net.ErrClosed)
	})
}

// A deadline that has passed ends Accept also where a connection waits.
func TestPassedDeadlineGoesBeforeWhatWaits(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	for range 20 {
		c, err := overSoft.dialer().Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		hang.Eventually(t, "it waits", func() bool { return ln.readStats().Waiting == 1 })
		require.NoError(t, ln.SetDeadline(time.Now()))
		_, err = ln.Accept()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, ln.SetDeadline(time.Time{}))
		s, err := ln.Accept()
		require.NoError(t, err)
		c.Close()
		s.Close()
	}
}

func TestDeadlinesOfAcceptDoNotPileUp(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	for i := range 1000 {
		require.NoError(t, ln.SetDeadline(time.Now().Add(time.Duration(i%3)*time.Microsecond)))
		if i%10 == 9 {
			require.NoError(t, ln.SetDeadline(time.Time{}))
			runtime.Gosched() // to a timer that fires too late
			overSoft.connect(t, ln)
		}
	}
}

func TestConnectionsThatWaitAreResetWithTheListener(t *testing.T) {
	over(t, []carrier{overTCP, overSoft}, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		var conns []net.Conn
		for range 5 {
			c, err := k.dialer().Dial("tcp", ln.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			conns = append(conns, c)
		}
		require.NoError(t, ln.Close())
		for _, c := range conns {
			hang.Start(t, func() {
				_, err := c.Read(make([]byte, 1))
				assert.ErrorIs(t, err, syscall.ECONNRESET)
			})()
		}
	})
}

func TestAcceptedConnectionsOutliveTheListener(t *testing.T) {
	leak.Check(t)
	over(t, allCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		c, s := k.connect(t, ln)
		require.NoError(t, ln.Close())
		time.Sleep(wait.SweepTime)
		for range 3 {
			await := hang.Start(t, func() {
				_, err := c.Write(traffic.Bytes(1, 100<<10))
				assert.NoError(t, err)
			})
			_, err := io.ReadFull(s, make([]byte, 100<<10))
			require.NoError(t, err)
			await()
			c, s = s, c
		}
	})
}

// A dial on a session that lives does not ask the peer, so it may come too
// early to know that the listener is closed: then the connection is reset, as
// one that a TCP listener closes in its backlog.
func TestDialAfterTheListenerClosedIsRefused(t *testing.T) {
	over(t, []carrier{overTCP, overSoft, {name: "auto"}}, func(t *testing.T, k carrier) {
		refused := 0
		const rounds = 50
		for range rounds {
			ln := k.listen(t)
			k.connect(t, ln) // keeps the session alive
			require.NoError(t, ln.Close())
			c, err := k.dialer().Dial("tcp", ln.Addr().String())
			if err == nil {
				_, err = c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				c.Close()
				continue
			}
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			refused++
		}
		require.NotZero(t, refused)
		t.Log(refused, "of", rounds, "refused, the others reset")
	})
}

func TestListenerCanBeOpenedAgain(t *testing.T) {
	over(t, []carrier{overTCP, overSoft, {name: "auto"}}, func(t *testing.T, k carrier) {
		address := closedAddress(t)
		ln := k.listenAt(t, address)
		for range 10 {
			var accepted net.Conn
			await := hang.Start(t, func() {
				var err error
				if accepted, err = ln.Accept(); assert.NoError(t, err) {
					_, err = accepted.Write([]byte{1})
					assert.NoError(t, err)
				}
			})
			c := dialUntilServed(t, k, address)
			await()
			c.(halfCloser).SetLinger(0) // leaves no TIME-WAIT behind
			c.Close()
			accepted.Close()
			require.NoError(t, ln.Close())
			ln = k.listenAt(t, address)
		}
	})
}

// dialUntilServed dials until it is greeted by a byte: a connection may have gone
// to a listener that is gone.
func dialUntilServed(t testing.TB, k carrier, address string) net.Conn {
	t.Helper()
	for {
		c, err := k.dialer().Dial("tcp", address)
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1)) // ended by the greeting, or the reset
		if err == nil {
			return c
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
		c.Close()
	}
}

func TestAddressInUseIsRefused(t *testing.T) {
	over(t, listening, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		_, err := k.listenConfig().Listen(ctxBackground, "tcp", ln.Addr().String())
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	})
}

func TestManyAcceptTogether(t *testing.T) {
	const each, acceptors = 50, 4
	over(t, listening, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		var accepting, dialing sync.WaitGroup
		for range acceptors {
			accepting.Go(func() {
				for range each {
					s, err := ln.Accept()
					if !assert.NoError(t, err) {
						return
					}
					go func() {
						defer s.Close()
						io.Copy(s, s)
					}()
				}
			})
			dialing.Go(func() {
				for i := range each {
					c, err := k.dialer().Dial("tcp", ln.Addr().String())
					if !assert.NoError(t, err) {
						return
					}
					fmt.Fprintf(c, "%04d", i)
					c.(halfCloser).CloseWrite()
					got, err := io.ReadAll(c)
					assert.NoError(t, err)
					assert.Equal(t, fmt.Sprintf("%04d", i), string(got))
					c.Close()
				}
			})
		}
		hang.Start(t, dialing.Wait)()
		hang.Start(t, accepting.Wait)()
	})
}

// lostListener is a listener of the connection manager whose Accept has failed,
// as that of a kernel device does whose descriptor is lost.
type lostListener struct {
	rcm.Listener
	err error
}

func (l lostListener) Accept(context.Context) (rcm.Request, error) { return nil, l.err }

// Nobody sees that a listener is there over TCP only from now on, unless it is
// logged. That it was closed is no news.
func TestLossOfATransportsListenerIsLogged(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	var text bytes.Buffer
	ln.set.Log = slog.New(slog.NewTextHandler(&text, nil))
	soft := ln.onFabrics()[0]
	ln.acceptFabric(fallback.RDMA, lostListener{soft, errors.New("the descriptor is gone")})
	require.Contains(t, text.String(), "level=ERROR")
	require.Contains(t, text.String(), "transport=rdma")
	require.Contains(t, text.String(), "the descriptor is gone")

	text.Reset()
	require.NoError(t, ln.Close())
	ln.acceptFabric(fallback.Soft, soft)
	require.Empty(t, text.String())
}

// A listener that is lost is opened again.
func TestLostListenerOfATransportIsReplaced(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	require.NoError(t, ln.onFabrics()[0].Close())
	hang.Eventually(t, "dials lead to the listener again", func() bool {
		c, err := overSoft.dialer().Dial("tcp", ln.Addr().String())
		if err != nil {
			return false
		}
		defer c.Close()
		s, err := ln.Accept()
		require.NoError(t, err)
		return s.Close() == nil
	})
}

// loser is a fabric whose listeners are lost as soon as they are there.
type loser struct {
	rcm.Fabric
	listens atomic.Int32
}

func (f *loser) Listen(netip.AddrPort, rcm.ListenConfig) (rcm.Listener, error) {
	f.listens.Add(1)
	return lostListener{nothing{}, errors.New("the descriptor is gone")}, nil
}

type nothing struct{ rcm.Listener }

func (nothing) Addr() netip.AddrPort   { return netip.AddrPort{} }
func (nothing) Stats() rcm.ListenStats { return rcm.ListenStats{} }
func (nothing) Close() error           { return nil }

// One that is always lost at once is not opened as fast as that goes.
func TestListenerThatIsLostAtOnceIsOpenedSeldom(t *testing.T) {
	ln := overSoft.listen(t).(*Listener)
	ln.set.Log = slog.New(slog.DiscardHandler)
	f := new(loser)
	ln.newFabricListener(fabric{Fabric: f, transport: fallback.RDMA}, netip.AddrPort{}, rcm.ListenConfig{}).open(nil)
	hang.Eventually(t, "it is opened", func() bool { return f.listens.Load() > 0 })
	time.Sleep(100 * time.Millisecond)
	require.Less(t, f.listens.Load(), int32(10))
	require.NoError(t, ln.Close()) // waits for it
}
