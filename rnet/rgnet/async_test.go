package rgnet

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

// echoes sends messages on c and wants each back.
func echoes(t testing.TB, c net.Conn, rounds, size int) {
	t.Helper()
	out, in := make([]byte, size), make([]byte, size)
	for i := range rounds {
		for j := range out {
			out[j] = byte(i + j*7)
		}
		_, err := c.Write(out)
		if err == nil {
			_, err = io.ReadFull(c, in)
		}
		if err != nil || !bytes.Equal(out, in) {
			t.Errorf("echo %d of %d bytes: wrong, or %v", i, size, err)
			return
		}
	}
}

func TestEchoInEveryWay(t *testing.T) {
	async := func(write func(c gnet.Conn, p []byte) error) func(c gnet.Conn) gnet.Action {
		return func(c gnet.Conn) gnet.Action {
			p, _ := c.Next(-1)
			write(c, bytes.Clone(p))
			return gnet.None
		}
	}
	ways := map[string]func(c gnet.Conn) gnet.Action{
		"Next and Write": new(echo).OnTraffic,
		"Peek, Write, Discard": func(c gnet.Conn) gnet.Action {
			p, _ := c.Peek(-1)
			c.Write(p)
			c.Discard(len(p))
			return gnet.None
		},
		"Read and Writev": func(c gnet.Conn) gnet.Action {
			buf := make([]byte, c.InboundBuffered())
			n, _ := c.Read(buf)
			c.Writev([][]byte{buf[:n/3], nil, buf[n/3 : n]})
			return gnet.None
		},
		"WriteTo itself": func(c gnet.Conn) gnet.Action {
			c.WriteTo(c)
			return gnet.None
		},
		"ReadFrom and Flush": func(c gnet.Conn) gnet.Action {
			p, _ := c.Next(-1)
			c.ReadFrom(bytes.NewReader(p))
			c.Flush()
			return gnet.None
		},
		"AsyncWrite":  async(func(c gnet.Conn, p []byte) error { return c.AsyncWrite(p, nil) }),
		"AsyncWritev": async(func(c gnet.Conn, p []byte) error { return c.AsyncWritev([][]byte{p[:len(p)/2], p[len(p)/2:]}, nil) }),
	}
	over(t, func(t *testing.T, k carrier) {
		for name, traffic := range ways {
			t.Run(name, func(t *testing.T) {
				s := k.serve(t, &script{traffic: traffic}, gnet.WithMulticore(true))
				var work sync.WaitGroup
				for i := range 20 {
					c := k.dial(t, s.address)
					work.Go(func() { echoes(t, c, 50, 1+i*i*11) })
				}
				finish(t, &work)
			})
		}
	})
}

// What ReadFrom took in OnOpen goes without a Flush.
func TestWhatOnOpenReadsFromElsewhereIsSent(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		s := k.serve(t, &script{open: func(c gnet.Conn) ([]byte, gnet.Action) {
			c.ReadFrom(strings.NewReader("hello"))
			return nil, gnet.None
		}})
		c := k.dial(t, s.address)
		c.SetReadDeadline(time.Now().Add(hang.Time))
		got := make([]byte, 5)
		_, err := io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
	})
}

func TestAsyncWritesOfManyGoroutinesKeepTheirOrder(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		const writers, messages = 8, 200
		var called atomic.Int64
		s := k.serve(t, &script{open: func(c gnet.Conn) ([]byte, gnet.Action) {
			for w := range writers {
				go func() { // ends with its messages
					for m := range messages {
						c.AsyncWrite([]byte{byte(w), byte(m)}, func(_ gnet.Conn, err error) error {
							if err == nil {
								called.Add(1)
							}
							return nil
						})
					}
				}()
			}
			return nil, gnet.None
		}})
		before := called.Load()
		c := k.dial(t, s.address)
		next := make([]byte, writers)
		for range writers * messages {
			var m [2]byte
			_, err := io.ReadFull(c, m[:])
			require.NoError(t, err)
			require.Equal(t, next[m[0]], m[1])
			next[m[0]]++
		}
		hang.Eventually(t, "all callbacks have come", func() bool { return called.Load()-before >= writers*messages })
	})
}

func TestWakeCallsOnTrafficWithoutData(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
			if c.InboundBuffered() == 0 {
				c.Write([]byte("0"))
				return gnet.None
			}
			c.Discard(-1)
			go func() { // ends by itself
				for range 10 {
					c.Wake(nil)
				}
				c.Wake(func(c gnet.Conn, err error) error {
					c.Write([]byte("!"))
					return nil
				})
			}()
			return gnet.None
		}})
		c := k.dial(t, s.address)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		var got [12]byte
		_, err = io.ReadFull(c, got[:])
		require.NoError(t, err)
		require.Equal(t, "00000000000!", string(got[:]))
	})
}

func TestCallbacksOfAClosedConnectionGetErrClosed(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		errs := make(chan error, 4)
		s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
			c.Discard(-1)
			go func() { // ends by itself
				closed := make(chan struct{})
				c.CloseWithCallback(func(_ gnet.Conn, err error) error {
					errs <- err
					close(closed)
					return nil
				})
				<-closed
				tell := func(_ gnet.Conn, err error) error { errs <- err; return nil }
				c.AsyncWrite([]byte("x"), tell)
				c.AsyncWritev([][]byte{{'x'}}, tell)
				c.Wake(tell)
			}()
			return gnet.None
		}})
		c := k.dial(t, s.address)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, hang.Receive(t, errs, "the callback is called"))
		require.ErrorIs(t, hang.Receive(t, errs, "the callback is called"), net.ErrClosed)
		require.ErrorIs(t, hang.Receive(t, errs, "the callback is called"), net.ErrClosed)
		require.NoError(t, hang.Receive(t, errs, "the callback is called"))
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}
