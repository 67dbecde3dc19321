package rgnet

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

func TestEachCallbackCanCloseTheConnection(t *testing.T) {
	handlers := map[string]*script{
		"OnOpen": {open: func(gnet.Conn) ([]byte, gnet.Action) { return []byte("bye"), gnet.Close }},
		"OnTraffic": {traffic: func(c gnet.Conn) gnet.Action {
			c.Write([]byte("bye"))
			return gnet.Close
		}},
		"Close": {traffic: func(c gnet.Conn) gnet.Action {
			c.Write([]byte("bye"))
			c.Close()
			return gnet.None
		}},
		"EventLoop.Close": {traffic: func(c gnet.Conn) gnet.Action {
			c.Write([]byte("bye"))
			c.EventLoop().Close(c)
			return gnet.None
		}},
	}
	over(t, func(t *testing.T, k carrier) {
		for name, h := range handlers {
			t.Run(name, func(t *testing.T) {
				h := *h
				closed := make(chan error, 2)
				h.close = func(_ gnet.Conn, err error) gnet.Action {
					closed <- err
					return gnet.None
				}
				s := k.serve(t, &h)
				hang.Receive(t, closed, "OnClose is called") // awaitListener's
				c := k.dial(t, s.address)
				c.Write([]byte("x")) // may fail: OnOpen closes
				got, err := io.ReadAll(c)
				if name != "OnOpen" { // there TCP may be reset by what was not read
					require.NoError(t, err)
					require.Equal(t, "bye", string(got))
				}
				require.NoError(t, hang.Receive(t, closed, "OnClose is called"))
			})
		}
	})
}

func TestEachCallbackCanEndTheEngine(t *testing.T) {
	bang := "bang"
	isBang := func(c gnet.Conn) bool { return c.InboundBuffered() == len(bang) }
	over(t, func(t *testing.T, k carrier) {
		handlers := map[string]func(armed func() bool) *script{
			"OnOpen": func(armed func() bool) *script {
				return &script{open: func(gnet.Conn) ([]byte, gnet.Action) {
					if armed() {
						return nil, gnet.Shutdown
					}
					return nil, gnet.None
				}}
			},
			"OnTraffic": func(func() bool) *script {
				return &script{traffic: func(c gnet.Conn) gnet.Action {
					if isBang(c) {
						return gnet.Shutdown
					}
					return gnet.None
				}}
			},
			"OnClose": func(func() bool) *script {
				return &script{
					traffic: func(c gnet.Conn) gnet.Action {
						if isBang(c) {
							return gnet.Close
						}
						return gnet.None
					},
					close: func(_ gnet.Conn, err error) gnet.Action {
						if err == nil {
							return gnet.Shutdown
						}
						return gnet.None
					},
				}
			},
		}
		for name, make := range handlers {
			t.Run(name, func(t *testing.T) {
				armed := gate()
				shut := gate()
				h := make(armed.open)
				h.shutdown = func(gnet.Engine) { shut.set() }
				s := k.serve(t, h)
				armed.set()
				c := k.dial(t, s.address)
				c.Write([]byte(bang)) // may fail: OnOpen ends the engine
				io.Copy(io.Discard, c)
				s.await(t)
				require.True(t, shut.open())
			})
		}
	})
}

// One loop has no more to say to a handler that has ended the engine, but that connections are closed.
func TestNoTrafficComesAfterTheEndOfTheEngine(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		entered, sent := make(chan struct{}, 1), gate()
		calls := 0
		s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
			c.Discard(-1)
			switch calls++; calls {
			case 1:
				entered <- struct{}{}
				<-sent
				return gnet.None
			case 2:
				c.Wake(nil)
				return gnet.Shutdown
			}
			t.Error("OnTraffic is called after Shutdown")
			return gnet.None
		}})
		conns := []net.Conn{k.dial(t, s.address), k.dial(t, s.address), k.dial(t, s.address)}
		hang.Eventually(t, "all are served", func() bool { return CountConnections(s.engine) == len(conns) })
		conns[0].Write([]byte("x"))
		hang.Receive(t, entered, "OnTraffic is called")
		conns[1].Write([]byte("x"))
		conns[2].Write([]byte("x"))
		sent.set()
		s.await(t)
	})
}

// gated is a flag that is set once.
type gated chan struct{}

func gate() gated    { return make(gated) }
func (g gated) set() { close(g) }
func (g gated) open() bool {
	select {
	case <-g:
		return true
	default:
		return false
	}
}

func TestStopClosesConnectionsAndReturns(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		const conns = 50
		opened := make(chan gnet.Conn, conns+1)
		closed := make(chan error, conns+1)
		shut := gate()
		s := k.serve(t, &script{
			open:     func(c gnet.Conn) ([]byte, gnet.Action) { opened <- c; return []byte("hello"), gnet.None },
			close:    func(_ gnet.Conn, err error) gnet.Action { closed <- err; return gnet.None },
			shutdown: func(gnet.Engine) { shut.set() },
		}, gnet.WithMulticore(true))
		hang.Receive(t, opened, "OnOpen is called") // awaitListener's
		hang.Receive(t, closed, "OnClose is called")
		var list []io.Reader
		for range conns {
			list = append(list, k.dial(t, s.address))
		}
		for range conns {
			hang.Receive(t, opened, "OnOpen is called")
		}
		require.Equal(t, conns, CountConnections(s.engine))
		ctx, cancel := context.WithTimeout(t.Context(), hang.Time)
		defer cancel()
		require.NoError(t, s.engine.Stop(ctx))
		s.await(t)
		require.True(t, shut.open())
		for range conns {
			require.NoError(t, hang.Receive(t, closed, "OnClose is called"))
		}
		for _, c := range list {
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, "hello", string(got))
		}
		_, err := k.dialer().Dial("tcp", s.address)
		require.Error(t, err)
		require.Equal(t, -1, CountConnections(s.engine))
	})
}

func TestOptionsOfGnet(t *testing.T) {
	options := map[string]gnet.Option{
		"edge-triggered":     gnet.WithEdgeTriggeredIO(true),
		"reuse port":         gnet.WithReusePort(true),
		"locked threads":     gnet.WithLockOSThread(true),
		"small read buffer":  gnet.WithReadBufferCap(1024),
		"small write buffer": gnet.WithWriteBufferCap(1024),
		"by address":         gnet.WithLoadBalancing(gnet.SourceAddrHash),
		"all at once":        gnet.WithOptions(gnet.Options{NumEventLoop: 3, Ticker: true, Logger: quiet{}}),
	}
	for name, option := range options {
		t.Run(name, func(t *testing.T) {
			s := auto.serve(t, new(echo), gnet.WithNumEventLoop(2), option)
			var work sync.WaitGroup
			for _, k := range []carrier{overTCP, streamCarriers[0]} {
				for range 10 {
					c := k.dial(t, s.address)
					work.Go(func() { echoes(t, c, 20, 100_000) })
				}
			}
			finish(t, &work)
		})
	}
}

func TestStopByAddress(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		s := k.serve(t, new(echo))
		ctx, cancel := context.WithTimeout(t.Context(), hang.Time)
		defer cancel()
		if err := Stop(ctx, "tcp://"+s.address); err != nil {
			require.ErrorIs(t, err, gerrors.ErrEngineInShutdown, "it ended before Stop looked")
		}
		s.await(t)
	})
}

func TestOnBootCanRefuse(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		h := &script{boot: func(gnet.Engine) gnet.Action { return gnet.Shutdown }}
		require.NoError(t, k.cfg.Run(h, "tcp://127.0.0.1:0", gnet.WithLogger(quiet{})))
	})
}

func TestOnTickIsCalledAsItAsks(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		ticks := 0
		h := &script{tick: func() (time.Duration, gnet.Action) {
			if ticks++; ticks == 10 {
				return 0, gnet.Shutdown
			}
			return time.Millisecond, gnet.None
		}}
		address := k.freeAddress(t)
		ended := make(chan error, 1)
		go func() {
			ended <- k.cfg.Run(h, "tcp://"+address, gnet.WithTicker(true), gnet.WithLogger(quiet{}))
		}()
		require.NoError(t, hang.Receive(t, ended, "Run returns"))
		require.GreaterOrEqual(t, ticks, 10)
	})
}

func TestOnTickIsNotCalledUnlessAskedFor(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		s := k.serve(t, &script{
			traffic: new(echo).OnTraffic,
			tick: func() (time.Duration, gnet.Action) {
				t.Error("OnTick was called")
				return time.Hour, gnet.None
			},
		})
		echoes(t, k.dial(t, s.address), 10, 10)
	})
}

func TestClosedPeersAreToldOfWithEOF(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		closed := make(chan error, 2)
		s := k.serve(t, &script{close: func(_ gnet.Conn, err error) gnet.Action {
			closed <- err
			return gnet.None
		}})
		require.ErrorIs(t, hang.Receive(t, closed, "OnClose is called"), io.EOF) // awaitListener's
		c := k.dial(t, s.address)
		c.Write([]byte("last words"))
		c.Close()
		require.ErrorIs(t, hang.Receive(t, closed, "OnClose is called"), io.EOF)
	})
}

func TestResetsAreToldOf(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		closed := make(chan error, 2)
		s := k.serve(t, &script{close: func(_ gnet.Conn, err error) gnet.Action {
			closed <- err
			return gnet.None
		}})
		hang.Receive(t, closed, "OnClose is called") // awaitListener's
		c := k.dial(t, s.address)
		c.Write([]byte("x"))
		c.(interface{ SetLinger(int) error }).SetLinger(0)
		c.Close()
		err := hang.Receive(t, closed, "OnClose is called")
		require.Error(t, err)
		if k.name != overTCP.name { // of TCP gnet says either, as epoll happens to tell it
			require.False(t, errors.Is(err, io.EOF), "%v", err)
		}
	})
}

func TestOnCloseFindsTheConnectionCountedNoMore(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		var engine gnet.Engine
		left := make(chan int, 2)
		s := k.serve(t, &script{
			boot:  func(eng gnet.Engine) gnet.Action { engine = eng; return gnet.None },
			close: func(gnet.Conn, error) gnet.Action { left <- CountConnections(engine); return gnet.None },
		})
		require.Zero(t, hang.Receive(t, left, "OnClose is called")) // awaitListener's
		kept, closed := k.dial(t, s.address), k.dial(t, s.address)
		hang.Eventually(t, "both are served", func() bool { return CountConnections(s.engine) == 2 })
		closed.Close()
		require.Equal(t, 1, hang.Receive(t, left, "OnClose is called"))
		kept.Close()
	})
}
