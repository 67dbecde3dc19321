package rgnet

import (
	"cmp"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

// On a loop's goroutine nothing else runs on that loop: Execute can use what
// callbacks use, without locks. (The race detector tells.)
func TestExecuteRunsOnTheLoop(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		count := 0
		done := make(chan struct{})
		s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
			c.Discard(-1)
			el := c.EventLoop()
			for range 8 {
				go func() { // ends by itself
					for range 100 {
						err := el.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
							if count++; count == 800 {
								close(done)
							}
							return nil
						}))
						if err != nil {
							t.Error(err)
						}
					}
				}()
			}
			return gnet.None
		}})
		c := k.dial(t, s.address)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		hang.Receive(t, done, "the handler is done")
	})
}

// onConn runs f on the loop of a connection, in OnTraffic.
func onConn(t *testing.T, k carrier, f func(c gnet.Conn)) {
	t.Helper()
	done := make(chan struct{})
	s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
		c.Discard(-1)
		f(c)
		close(done)
		return gnet.None
	}})
	c := k.dial(t, s.address)
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	hang.Receive(t, done, "the handler is done")
}

func TestEventLoopRefusesWhatGnetRefuses(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		onConn(t, k, func(c gnet.Conn) {
			el := c.EventLoop()
			check := func(want, got error) {
				t.Helper()
				if got != want {
					t.Errorf("got %v, want %v", got, want)
				}
			}
			check(gerrors.ErrNilRunnable, el.Execute(context.Background(), nil))
			check(gerrors.ErrUnsupportedOp, el.Schedule(context.Background(), gnet.RunnableFunc(func(context.Context) error { return nil }), time.Second))
			_, err := el.Register(context.Background(), nil)
			check(gerrors.ErrInvalidNetworkAddress, err)
			_, err = el.Enroll(context.Background(), nil)
			check(gerrors.ErrInvalidNetConn, err)
		})
	})
}

func TestRegisterServesAnOutgoingConnectionOnTheSameLoop(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		far := k.serve(t, new(echo))
		at, err := net.ResolveTCPAddr("tcp", far.address)
		require.NoError(t, err)
		type mark struct{ back gnet.Conn }
		s := k.serve(t, &script{
			open: func(c gnet.Conn) ([]byte, gnet.Action) {
				if _, ok := c.Context().(*mark); ok {
					return []byte("through"), gnet.None
				}
				return nil, gnet.None
			},
			traffic: func(c gnet.Conn) gnet.Action {
				p, _ := c.Next(-1)
				if m, ok := c.Context().(*mark); ok {
					if m.back.EventLoop() != c.EventLoop() {
						t.Error("another loop")
					}
					m.back.Write(p)
					return gnet.None
				}
				results, err := c.EventLoop().Register(gnet.NewContext(context.Background(), &mark{c}), at)
				if err != nil {
					t.Error(err)
					return gnet.Close
				}
				go func() {
					if r := <-results; r.Err != nil {
						t.Error(r.Err)
						c.Close()
					}
				}()
				return gnet.None
			},
		}, gnet.WithNumEventLoop(2), gnet.WithLoadBalancing(gnet.LeastConnections))
		c := k.dial(t, s.address)
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		got := make([]byte, 7)
		_, err = io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, "through", string(got))
	})
}

func TestSessionsAreSpreadOverTheLoops(t *testing.T) {
	for name, lb := range map[string]gnet.LoadBalancing{"round robin": gnet.RoundRobin, "least connections": gnet.LeastConnections} {
		t.Run(name, func(t *testing.T) {
			loops := make(chan gnet.EventLoop, 9)
			s := streamCarriers[0].serve(t, &script{open: func(c gnet.Conn) ([]byte, gnet.Action) {
				loops <- c.EventLoop()
				return nil, gnet.None
			}}, gnet.WithNumEventLoop(4), gnet.WithLoadBalancing(lb))
			hang.Receive(t, loops, "OnOpen is called") // awaitListener's
			d := streamCarriers[0].dialer()
			d.Dedicated = true
			count := make(map[gnet.EventLoop]int)
			for range 8 {
				c, err := d.Dial("tcp", s.address)
				require.NoError(t, err)
				defer c.Close()
				count[hang.Receive(t, loops, "OnOpen is called")]++
			}
			require.Len(t, count, 4)
			for _, n := range count {
				require.Equal(t, 2, n)
			}
		})
	}
}

func TestOneHostHasOneLoopIfTheAddressDecides(t *testing.T) {
	loops := make(chan gnet.EventLoop, 9)
	s := streamCarriers[0].serve(t, &script{open: func(c gnet.Conn) ([]byte, gnet.Action) {
		loops <- c.EventLoop()
		return nil, gnet.None
	}}, gnet.WithNumEventLoop(4), gnet.WithLoadBalancing(gnet.SourceAddrHash))
	c := streamCarriers[0].dial(t, s.address)
	echoless := hang.Receive(t, loops, "OnOpen is called")
	require.Equal(t, echoless, hang.Receive(t, loops, "OnOpen is called"))
	c.Close()
}

func TestAConnectionHasContextAndAddresses(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		var address string
		onConn(t, k, func(c gnet.Conn) {
			address = c.LocalAddr().String()
			c.SetContext(1)
			c.SetSafeContext(2)
			if c.Context() != 1 || c.SafeContext() != 2 {
				t.Error("another context")
			}
			if _, ok := c.RemoteAddr().(*net.TCPAddr); !ok {
				t.Errorf("remote address %T", c.RemoteAddr())
			}
			for _, err := range []error{
				c.SetNoDelay(true), c.SetLinger(-1), c.SetReadBuffer(1 << 16), c.SetWriteBuffer(1 << 16),
				c.SetKeepAlivePeriod(time.Minute), c.SetKeepAlive(true, time.Minute, time.Second, 3),
			} {
				if err != nil {
					t.Error(err)
				}
			}
			for _, err := range []error{
				c.SetDeadline(time.Time{}), c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}),
			} {
				if err != gerrors.ErrUnsupportedOp {
					t.Error(err)
				}
			}
			if _, err := c.SendTo(nil, nil); err != gerrors.ErrUnsupportedOp {
				t.Error(err)
			}
		})
		require.Contains(t, address, cmp.Or(k.host, "127.0.0.1")+":")
	})
}
