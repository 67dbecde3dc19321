package rnet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The errors name what those of package net name: the operation, and the ends that it concerns.
func TestEverythingFailsAfterClose(t *testing.T) {
	type form struct{ op, network, source, addr string }
	ends := func(c halfCloser, addr net.Addr) string {
		switch addr {
		case nil:
			return ""
		case c.LocalAddr():
			return "local"
		case c.RemoteAddr():
			return "remote"
		}
		return addr.String()
	}
	calls := map[string]func(c halfCloser) error{
		"Read":               func(c halfCloser) error { _, err := c.Read(make([]byte, 1)); return err },
		"Read of nothing":    func(c halfCloser) error { _, err := c.Read(nil); return err },
		"Write":              func(c halfCloser) error { _, err := c.Write([]byte("x")); return err },
		"Close":              halfCloser.Close,
		"CloseRead":          halfCloser.CloseRead,
		"CloseWrite":         halfCloser.CloseWrite,
		"SetDeadline":        func(c halfCloser) error { return c.SetDeadline(time.Time{}) },
		"SetReadDeadline":    func(c halfCloser) error { return c.SetReadDeadline(time.Now()) },
		"SetWriteDeadline":   func(c halfCloser) error { return c.SetWriteDeadline(time.Now()) },
		"SetLinger":          func(c halfCloser) error { return c.SetLinger(0) },
		"SetNoDelay":         func(c halfCloser) error { return c.SetNoDelay(true) },
		"SetKeepAlive":       func(c halfCloser) error { return c.SetKeepAlive(true) },
		"SetKeepAlivePeriod": func(c halfCloser) error { return c.SetKeepAlivePeriod(time.Second) },
		"SetKeepAliveConfig": func(c halfCloser) error { return c.SetKeepAliveConfig(net.KeepAliveConfig{}) },
		"SetReadBuffer":      func(c halfCloser) error { return c.SetReadBuffer(1 << 16) },
		"SetWriteBuffer":     func(c halfCloser) error { return c.SetWriteBuffer(1 << 16) },
		"ReadFrom":           func(c halfCloser) error { _, err := c.ReadFrom(bytes.NewReader([]byte("x"))); return err },
		"WriteTo":            func(c halfCloser) error { _, err := c.WriteTo(io.Discard); return err },
		"RawConn.Control": func(c halfCloser) error {
			raw, err := c.(syscall.Conn).SyscallConn()
			require.NoError(t, err)
			return raw.Control(func(uintptr) {})
		},
	}
	formOf := func(t *testing.T, c halfCloser, name string) form {
		err := calls[name](c)
		require.ErrorIs(t, err, net.ErrClosed, name)
		var op *net.OpError
		require.ErrorAs(t, err, &op, name)
		require.False(t, op.Timeout(), name)
		return form{op.Op, op.Net, ends(c, op.Source), ends(c, op.Addr)}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	plain, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	require.NoError(t, plain.Close())
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, _ := k.ends(t)
		require.NoError(t, c.Close())
		for name := range calls {
			require.Equal(t, formOf(t, plain.(halfCloser), name), formOf(t, c, name), name)
		}
		require.IsType(t, (*net.TCPAddr)(nil), c.LocalAddr())
		require.IsType(t, (*net.TCPAddr)(nil), c.RemoteAddr())
	})
}

func TestErrorsNameTheNetworkThatWasAskedFor(t *testing.T) {
	over(t, []carrier{overTCP, overSoft}, func(t *testing.T, k carrier) {
		for _, network := range []string{"tcp4", "tcp"} {
			ln, err := k.listenConfig().Listen(ctxBackground, network, "127.0.0.1:0")
			require.NoError(t, err)
			defer ln.Close()
			for _, asked := range []string{"tcp", "tcp4"} { // on one session
				d, err := k.dialer().Dial(asked, ln.Addr().String())
				require.NoError(t, err)
				defer d.Close()
				a, err := ln.Accept()
				require.NoError(t, err)
				defer a.Close()
				for c, want := range map[net.Conn]string{d: asked, a: network} {
					require.NoError(t, c.SetDeadline(time.Unix(1, 0)))
					_, err = c.Read(make([]byte, 1))
					var op *net.OpError
					require.ErrorAs(t, err, &op)
					require.Equal(t, want, op.Net)
				}
			}
		}
	})
}

// Close throws away what has arrived. A Read at that moment must not take
// that for the end of the stream, which is behind it.
func TestReadsDuringCloseDoNotSeeTheEndTooEarly(t *testing.T) {
	const size, rounds = 8 << 10, 400
	reads := map[string]func(c *Conn) (int, error){
		"Read": func(c *Conn) (int, error) { return c.Read(make([]byte, 7)) },
		"Peek": func(c *Conn) (int, error) {
			p, err := c.Peek(7)
			if len(p) > 0 {
				return c.Discard(len(p))
			}
			return 0, err
		},
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			ln := overSoft.listen(t)
			rnd := traffic.NewRand(1)
			for round := range rounds {
				d, a := overSoft.connect(t, ln)
				_, err := a.Write(make([]byte, size))
				require.NoError(t, err)
				require.NoError(t, a.Close())
				c := d.(*Conn)
				hang.Eventually(t, "the end is there", func() bool {
					c.s.mux.PollLock().Look()
					return c.s.mux.Len() == 0
				})
				closing := hang.Start(t, func() {
					for range rnd.IntN(2000) { // a few microseconds
						c.st.Closed()
					}
					assert.NoError(t, c.Close())
				})
				total := 0
				for err == nil {
					var n int
					n, err = read(c)
					total += n
				}
				closing()
				if !errors.Is(err, net.ErrClosed) {
					require.Equal(t, io.EOF, err)
					require.Equal(t, size, total, "round %d", round)
				}
			}
		})
	}
}

func TestReserveAndPeekFailAfterClose(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, _ := k.streams(t)
		_, err := c.Reserve(100)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		_, err = c.Reserve(100)
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, c.Commit(1), net.ErrClosed)
		_, err = c.Peek(1)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c.Discard(1)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestCloseDeliversWhatWasWritten(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		data := traffic.Bytes(2, 2<<20)
		await := hang.Start(t, func() {
			_, err := c.Write(data)
			assert.NoError(t, err)
			assert.NoError(t, c.Close())
		})
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		await()
	})
}

func TestCloseEndsBlockedReadAndWrite(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, _ := k.ends(t)
		awaitRead := hang.Start(t, func() {
			_, err := c.Read(make([]byte, 1))
			assert.ErrorIs(t, err, net.ErrClosed)
		})
		awaitWrite := hang.Start(t, func() {
			_, err := c.Write(make([]byte, 64<<20))
			assert.ErrorIs(t, err, net.ErrClosed)
		})
		time.Sleep(10 * time.Millisecond) // so that both are blocked, most of the time
		require.NoError(t, c.Close())
		awaitRead()
		awaitWrite()
	})
}

// tls.Conn.Close and smtp.SendMail write to a peer that has gone, and count on that.
func TestFirstWriteAfterThePeersCloseSucceeds(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		require.NoError(t, s.Close())
		_, err := c.Read(make([]byte, 1))
		require.True(t, err == io.EOF, "%v", err)
		n, err := c.Write([]byte("first"))
		require.NoError(t, err)
		require.Equal(t, 5, n)
		hang.Eventually(t, "an error of Write", func() bool {
			_, err = c.Write([]byte("x"))
			return err != nil
		})
		require.ErrorIs(t, err, syscall.EPIPE)
		var call *os.SyscallError
		require.ErrorAs(t, err, &call)
		_, err = c.Read(make([]byte, 1))
		require.True(t, err == io.EOF, "%v", err)
		require.ErrorIs(t, c.CloseWrite(), syscall.ENOTCONN)
		require.NoError(t, c.Close())
	})
}

func TestCloseWithUnreadDataResetsThePeer(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		_, err := s.Write([]byte("answer"))
		require.NoError(t, err)
		_, err = c.Write([]byte("read and not read"))
		require.NoError(t, err)
		buf := make([]byte, 8)
		_, err = io.ReadFull(s, buf)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		hang.Eventually(t, "the reset", func() bool {
			_, err = c.Write([]byte("x"))
			return err != nil
		})
		require.ErrorIs(t, err, syscall.ECONNRESET)
		n, err := c.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "answer", string(buf[:n]))
	})
}

// The goroutine that polls for all may be asleep, and about to be woken by what is unread.
func TestCloseWithUnreadDataResetsThePeerWhileAnotherStreamIsRead(t *testing.T) {
	ln := overSoft.listen(t)
	other, otherPeer := overSoft.connect(t, ln)
	for range 200 {
		d, a := overSoft.connect(t, ln)
		require.Same(t, other.(*Conn).s, d.(*Conn).s)
		read := hang.Start(t, func() {
			_, err := io.ReadFull(other, make([]byte, 1))
			assert.NoError(t, err)
		})
		time.Sleep(200 * time.Microsecond) // for it to sleep
		_, err := a.Write([]byte("unread"))
		require.NoError(t, err)
		require.NoError(t, d.Close())
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.NoError(t, a.Close())
		_, err = otherPeer.Write([]byte("x"))
		require.NoError(t, err)
		read()
	}
}

func TestBlockedWriteEndsWhenThePeerCloses(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		await := hang.Start(t, func() {
			_, err := c.Write(make([]byte, 64<<20))
			assert.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
		})
		time.Sleep(10 * time.Millisecond) // so that it is blocked, most of the time
		require.NoError(t, s.Close())
		await()
	})
}

func TestLingerZeroResets(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		await := hang.Start(t, func() {
			_, err := s.Read(make([]byte, 1))
			assert.ErrorIs(t, err, syscall.ECONNRESET)
			var call *os.SyscallError
			assert.ErrorAs(t, err, &call)
			assert.Equal(t, "read", call.Syscall)
			var op *net.OpError
			assert.ErrorAs(t, err, &op)
			assert.Equal(t, "read", op.Op)
		})
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
		await()
		_, err := s.Write([]byte("x"))
		require.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
	})
}

func TestLingeringCloseReturnsWhenAllIsSent(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		require.NoError(t, c.SetLinger(10))
		_, err := c.Write(traffic.Bytes(3, 1000))
		require.NoError(t, err)
		hang.Start(t, func() { assert.NoError(t, c.Close()) })()
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.Len(t, got, 1000)
	})
}

func TestConcurrentClosesAreSafe(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		for range 50 {
			c, s := k.connect(t, ln)
			var awaits []func()
			for _, end := range []net.Conn{c, s} {
				for range 3 {
					awaits = append(awaits, hang.Start(t, func() { end.Close() }))
				}
				awaits = append(awaits, hang.Start(t, func() { io.Copy(io.Discard, end) }))
				awaits = append(awaits, hang.Start(t, func() { end.Write(make([]byte, 100<<10)) }))
			}
			for _, await := range awaits {
				await()
			}
		}
	})
}
