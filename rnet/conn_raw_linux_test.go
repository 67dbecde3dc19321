package rnet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// idle is what a pool asks a connection that nobody uses: nil if it is good. It is
// go-redis' question with peek, and go-sql-driver/mysql's without.
func idle(t *testing.T, c net.Conn, peek bool) (found error) {
	t.Helper()
	require.NoError(t, rawOf(t, c.(syscall.Conn)).Read(func(fd uintptr) bool {
		flags := unix.MSG_DONTWAIT
		if peek {
			flags |= unix.MSG_PEEK
		}
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], flags)
		switch {
		case n == 0 && err == nil:
			found = io.EOF
		case n > 0:
			found = errors.New("unexpected read")
		case err != unix.EAGAIN:
			found = err
		}
		return true
	}))
	return found
}

func TestAnIdleConnectionThatThePeerHasEndedIsNoticed(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		for _, peek := range []bool{true, false} {
			for name, end := range map[string]struct {
				do   func(s net.Conn)
				want error
			}{
				"close": {func(s net.Conn) { s.Close() }, io.EOF},
				"half":  {func(s net.Conn) { s.(interface{ CloseWrite() error }).CloseWrite() }, io.EOF},
				"reset": {func(s net.Conn) {
					s.(interface{ SetLinger(int) error }).SetLinger(0)
					s.Close()
				}, syscall.ECONNRESET},
			} {
				t.Run(name, func(t *testing.T) {
					c, s := k.pair(t)
					for range 3 {
						require.NoError(t, idle(t, c, peek))
					}
					_, err := s.Write([]byte("hello"))
					require.NoError(t, err)
					hang.Eventually(t, "data", func() bool { return idle(t, c, true) != nil })
					require.ErrorContains(t, idle(t, c, true), "unexpected read")
					read := make([]byte, 5)
					_, err = io.ReadFull(c, read)
					require.NoError(t, err)
					require.Equal(t, "hello", string(read), "the question has taken what was read")
					require.NoError(t, idle(t, c, peek))
					end.do(s)
					var found error
					hang.Eventually(t, "the end", func() bool {
						found = idle(t, c, peek)
						return found != nil
					})
					require.ErrorIs(t, found, end.want)
				})
			}
		}
	})
}

// A reset is told of as one, also where the program has seen before that it can write no
// more.
func TestAResetIsNoticedByWhoHasEndedItsWrites(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
		require.NoError(t, idle(t, c, true))
		_, err := io.ReadAll(s)
		require.NoError(t, err)
		require.NoError(t, idle(t, c, true))
		require.NoError(t, s.(interface{ SetLinger(int) error }).SetLinger(0))
		require.NoError(t, s.Close())
		var found error
		hang.Eventually(t, "the end", func() bool {
			found = idle(t, c, true)
			return found != nil
		})
		require.ErrorIs(t, found, syscall.ECONNRESET)
	})
}

// A descriptor is made at the first call that asks for it, and kept until Close.
func TestADescriptorIsMadeWhenItIsAskedFor(t *testing.T) {
	c, s := overSoft.streams(t)
	require.NoError(t, idle(t, c, true))
	require.Nil(t, s.pair.Load())
	p := c.pair.Load()
	require.NotNil(t, p)
	raw := rawOf(t, c)
	require.NoError(t, idle(t, c, true))
	require.Same(t, p, c.pair.Load())
	for _, fd := range []int{p.near, p.far} {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
	}
	begun, closed := make(chan struct{}), make(chan struct{})
	await := hang.Start(t, func() {
		assert.NoError(t, raw.Control(func(fd uintptr) {
			close(begun)
			<-closed
			_, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
			assert.NoError(t, err, "Close has taken the descriptor from a function that uses it")
		}))
	})
	<-begun
	require.NoError(t, c.Close())
	close(closed)
	await()
	require.Zero(t, p.holders.Load())
	for what, err := range map[string]error{
		"raw-control": raw.Control(func(uintptr) { t.Error("called") }),
		"raw-read":    raw.Read(func(uintptr) bool { t.Error("called"); return true }),
		"raw-write":   raw.Write(func(uintptr) bool { t.Error("called"); return true }),
	} {
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, what, op.Op)
		require.ErrorIs(t, err, net.ErrClosed)
	}
}

// A server may recover from a panic, and use the connection again.
func TestAPanicOfWhoHasTheDescriptorLeavesTheStreamAsItWas(t *testing.T) {
	c, s := overSoft.streams(t)
	raw := rawOf(t, c)
	_, err := s.Write([]byte("abc"))
	require.NoError(t, err)
	var b [10]byte
	require.NoError(t, raw.Read(func(fd uintptr) bool { // until it has come
		n, _, _ := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT|unix.MSG_PEEK)
		return n > 0
	}))
	for name, panics := range map[string]func(){
		"Control": func() { raw.Control(func(uintptr) { panic("wrong") }) },
		"Read":    func() { raw.Read(func(uintptr) bool { panic("wrong") }) },
		"Write":   func() { raw.Write(func(uintptr) bool { panic("wrong") }) },
	} {
		require.Panics(t, panics, name)
		require.NoError(t, raw.Control(func(uintptr) {}))
	}
	n, err := c.Read(b[:])
	require.NoError(t, err)
	require.Equal(t, "abc", string(b[:n]))
	p := c.pair.Load()
	require.NoError(t, c.Close())
	require.Zero(t, p.holders.Load(), "the descriptors stay open")
}

// Programs that read and write by descriptors move the stream's bytes.
func TestBytesMoveByDescriptors(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		data := traffic.Bytes(7, 1<<20)
		await := hang.Start(t, func() {
			raw := rawOf(t, s.(syscall.Conn))
			for rest := data; len(rest) > 0; {
				assert.NoError(t, raw.Write(func(fd uintptr) bool {
					n, err := unix.Write(int(fd), rest)
					if n > 0 {
						rest = rest[n:]
					}
					return err != unix.EAGAIN
				}))
			}
			assert.NoError(t, s.(interface{ CloseWrite() error }).CloseWrite())
			assert.NoError(t, raw.Write(func(fd uintptr) bool {
				_, err := unix.Write(int(fd), []byte{1})
				assert.ErrorIs(t, err, unix.EPIPE)
				return true
			}))
		})
		var got bytes.Buffer
		piece := make([]byte, 10_000)
		raw := rawOf(t, c.(syscall.Conn))
		for end, byCall := false, false; !end; byCall = !byCall {
			if byCall { // in between by Read
				n, err := c.Read(piece[:100])
				got.Write(piece[:n])
				end = err == io.EOF
				continue
			}
			require.NoError(t, raw.Read(func(fd uintptr) bool {
				n, err := unix.Read(int(fd), piece)
				if err == unix.EAGAIN {
					return false
				}
				require.NoError(t, err)
				got.Write(piece[:n])
				end = n == 0
				return true
			}))
		}
		await()
		require.True(t, bytes.Equal(data, got.Bytes()))
	})
}

// A function that is not content waits, for more than it has seen.
func TestAReadByDescriptorWaitsForMore(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		_, err := s.Write([]byte("one"))
		require.NoError(t, err)
		var seen []int
		await := hang.Start(t, func() {
			assert.NoError(t, rawOf(t, c).Read(func(fd uintptr) bool {
				var b [16]byte
				n, _, _ := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
				seen = append(seen, n)
				return n == 6
			}))
		})
		_, err = s.Write([]byte("two"))
		require.NoError(t, err)
		await()
		require.Equal(t, 6, seen[len(seen)-1])
		for i := range seen[1:] {
			require.Greater(t, seen[i+1], seen[i], "it was asked though nothing new had come: %v", seen)
		}
		all := make([]byte, 6)
		_, err = io.ReadFull(c, all)
		require.NoError(t, err)
		require.Equal(t, "onetwo", string(all))

		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
		err = rawOf(t, c).Read(func(uintptr) bool { return false })
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		await = hang.Start(t, func() {
			assert.ErrorIs(t, rawOf(t, c).Read(func(uintptr) bool { return false }), net.ErrClosed)
		})
		require.NoError(t, rawOf(t, c).Control(func(uintptr) {})) // does not wait for the reader
		require.NoError(t, c.Close())
		await()
	})
}

// A function that writes nothing and is not content is called again when something has
// changed that it can see, and not before.
func TestAWriteByDescriptorWaitsForAnEvent(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		calls := 0
		never := func(uintptr) bool {
			if calls++; calls == 1 {
				assert.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			}
			return false
		}
		require.ErrorIs(t, rawOf(t, c).Write(never), os.ErrDeadlineExceeded)
		require.Equal(t, 1, calls, "it was called though nothing had happened")

		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		n := fillWindow(t, c, s) // it opens again only if much of it is read
		second := func(do func(), want error) {
			t.Helper()
			begun, calls := make(chan struct{}), 0
			await := hang.Start(t, func() {
				assert.ErrorIs(t, rawOf(t, c).Write(func(fd uintptr) bool {
					if calls++; calls == 1 {
						close(begun)
						return false
					}
					_, err := unix.Write(int(fd), nil)
					return want == nil && err == nil
				}), want)
			})
			<-begun
			do()
			await()
		}
		second(func() {
			_, err := io.CopyN(io.Discard, s, int64(n))
			require.NoError(t, err)
		}, nil) // the window has opened
		second(func() { require.NoError(t, c.CloseWrite()) }, syscall.EPIPE)

		c, _ = k.streams(t)
		second(func() { require.NoError(t, c.Close()) }, net.ErrClosed)
		c, s = k.streams(t)
		second(func() {
			require.NoError(t, s.SetLinger(0))
			require.NoError(t, s.Close())
		}, syscall.ECONNRESET)
	})
}

// A stream has all the methods of a TCP connection.
func TestAConnHasTheMethodsOfATCPConn(t *testing.T) {
	c, _ := overSoft.streams(t)
	tcp := reflect.TypeFor[*net.TCPConn]()
	for m := range tcp.NumMethod() {
		name := tcp.Method(m).Name
		_, ok := reflect.TypeOf(c).MethodByName(name)
		require.True(t, ok, "no %s", name)
	}
	_, err := c.File()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	on, err := c.MultipathTCP()
	require.NoError(t, err)
	require.False(t, on)
}
