package rnet

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIOCopyMovesEverything(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		data := traffic.Bytes(1, 3<<20)
		await := hang.Start(t, func() {
			n, err := c.ReadFrom(bytes.NewReader(data))
			assert.NoError(t, err)
			assert.EqualValues(t, len(data), n)
			assert.NoError(t, c.CloseWrite())
		})
		var got bytes.Buffer
		n, err := s.WriteTo(&got)
		require.NoError(t, err)
		require.EqualValues(t, len(data), n)
		require.True(t, bytes.Equal(data, got.Bytes()))
		await()
	})
}

func TestConnectionsCanBeCopiedIntoEachOther(t *testing.T) {
	for _, from := range allCarriers {
		for _, to := range []carrier{overTCP, overSoft} {
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				a, b := from.ends(t)
				c, d := to.ends(t)
				data := traffic.Bytes(2, 1<<20)
				writing := hang.Start(t, func() {
					_, err := a.Write(data)
					assert.NoError(t, err)
					assert.NoError(t, a.CloseWrite())
				})
				copying := hang.Start(t, func() {
					n, err := io.Copy(c, b)
					assert.NoError(t, err)
					assert.EqualValues(t, len(data), n)
					assert.NoError(t, c.CloseWrite())
				})
				got, err := io.ReadAll(d)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got))
				writing()
				copying()
			})
		}
	}
}

// A proxy whose client does not read must not hold up what else comes over the
// session.
func TestCopyToABlockedWriterStopsNoOther(t *testing.T) {
	const each = 4 << 20
	ln := overSoft.listen(t)
	lazy, held := overSoft.connect(t, ln)
	go lazy.Write(traffic.Bytes(1, each)) // ends with the test
	sink, stuck := net.Pipe()
	copying := hang.Start(t, func() { io.Copy(stuck, held) })
	io.ReadFull(sink, make([]byte, 1)) // the copy has begun, and its first write blocks
	awaitFullWindow(t, lazy.(*Conn))
	c, s := overSoft.connect(t, ln)
	require.Same(t, lazy.(*Conn).s, c.(*Conn).s)
	await := hang.Start(t, func() { assert.NoError(t, traffic.Write(c, traffic.NewRand(1), 3, each, 64<<10)) })
	done := hang.Start(t, func() { assert.NoError(t, traffic.Read(s, traffic.NewRand(2), 3, each, 64<<10)) })
	await()
	done()
	sink.Close()
	copying()
}

type failingReader struct{ err error }

func (r failingReader) Read(p []byte) (int, error) { return copy(p, "partial"), r.err }

type shortWriter struct{}

func (shortWriter) Write(p []byte) (int, error) { return len(p) / 2, nil }

type boastingWriter struct{}

func (boastingWriter) Write(p []byte) (int, error) { return len(p) + 1, nil }

func TestErrorsOfTheOtherSideComeBackFromCopies(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		errBroken := errors.New("broken")
		n, err := c.ReadFrom(failingReader{errBroken})
		require.ErrorIs(t, err, errBroken)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, "readfrom", op.Op)
		require.EqualValues(t, 7, n)
		n, err = s.WriteTo(shortWriter{})
		require.ErrorIs(t, err, io.ErrShortWrite)
		require.ErrorAs(t, err, &op)
		require.Equal(t, "writeto", op.Op)
		require.EqualValues(t, 3, n)
		_, err = c.Write([]byte("more"))
		require.NoError(t, err)
		n, err = s.WriteTo(boastingWriter{})
		require.ErrorContains(t, err, "invalid write result")
		require.Zero(t, n)
		s.SetReadDeadline(time.Now().Add(-time.Second))
		_, err = s.WriteTo(io.Discard)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		c.SetWriteDeadline(time.Now().Add(-time.Second))
		_, err = c.ReadFrom(strings.NewReader("late"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

func TestNetBuffersAreWrittenInOrder(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		data := traffic.Bytes(3, 200<<10)
		var buffers net.Buffers
		rnd := traffic.NewRand(1)
		for rest := data; len(rest) > 0; {
			n := min(len(rest), rnd.IntN(20<<10))
			buffers = append(buffers, rest[:n])
			rest = rest[n:]
		}
		await := hang.Start(t, func() {
			n, err := buffers.WriteTo(c)
			assert.NoError(t, err)
			assert.EqualValues(t, len(data), n)
		})
		got := make([]byte, len(data))
		_, err := io.ReadFull(s, got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		await()
	})
}

func TestPeekShowsWhatReadGives(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		const total = 1 << 20
		await := hang.Start(t, func() {
			assert.NoError(t, traffic.Write(c, traffic.NewRand(1), 4, total, 32<<10))
			assert.NoError(t, c.CloseWrite())
		})
		rnd := traffic.NewRand(2)
		for at := 0; at < total; {
			n := 1 + rnd.IntN(min(total-at, int(s.s.mux.Config().Window)))
			p, err := s.Peek(n)
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(p), n)
			require.NoError(t, traffic.Check(p, 4, at))
			again, err := s.Peek(1)
			require.NoError(t, err)
			require.NoError(t, traffic.Check(again, 4, at), "nothing was taken")
			switch rnd.IntN(3) {
			case 0:
				m, err := s.Discard(n)
				require.NoError(t, err)
				require.Equal(t, n, m)
			default:
				n = 1 + rnd.IntN(n)
				buf := make([]byte, n)
				_, err = io.ReadFull(s, buf)
				require.NoError(t, err)
				require.NoError(t, traffic.Check(buf, 4, at))
			}
			at += n
		}
		_, err := s.Peek(1)
		require.True(t, err == io.EOF, "%v", err)
		_, err = s.Discard(1)
		require.True(t, err == io.EOF, "%v", err)
		await()
	})
}

func TestPeekTellsTheEnd(t *testing.T) {
	c, s := overSoft.streams(t)
	_, err := c.Write([]byte("short"))
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	p, err := s.Peek(10)
	require.True(t, err == io.EOF, "%v", err)
	require.Equal(t, "short", string(p))
	_, err = s.Peek(int(s.s.mux.Config().Window) + 1)
	require.ErrorIs(t, err, bufio.ErrBufferFull)
	n, err := s.Discard(10)
	require.True(t, err == io.EOF, "%v", err)
	require.Equal(t, 5, n)
}

func TestPeekHasADeadline(t *testing.T) {
	c, s := overSoft.streams(t)
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	s.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err = s.Peek(2)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	s.SetReadDeadline(time.Time{})
	p, err := s.Peek(1)
	require.NoError(t, err)
	require.Equal(t, "x", string(p))
}

// What Peek gave out stays readable while the stream goes on, also when the
// session dies.
func TestPeekedBytesOutliveTheSession(t *testing.T) {
	leak.Check(t)
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		n := min(int(s.s.mux.Config().Window), 64<<10)
		await := hang.Start(t, func() { assert.NoError(t, traffic.Write(c, traffic.NewRand(1), 5, n, n)) })
		p, err := s.Peek(n / 2)
		require.NoError(t, err)
		await()
		hang.Eventually(t, "all has arrived", func() bool { return s.st.Stats().BytesIn == uint64(n) })
		c.s.mux.Fail(io.ErrUnexpectedEOF)
		<-c.s.mux.Done() // ended by the engine
		<-s.s.mux.Done()
		require.NoError(t, traffic.Check(p, 5, 0))
		require.NoError(t, traffic.Read(s, traffic.NewRand(2), 5, n, 1000), "what had arrived is read before the error")
		_, err = s.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, s.Close())
	})
}

func TestPeekAndCloseMayMeet(t *testing.T) {
	leak.Check(t)
	ln := overSoft.listen(t)
	for range 200 {
		c, s := overSoft.connect(t, ln)
		var peeking sync.WaitGroup
		peeking.Go(func() {
			for {
				p, err := s.(*Conn).Peek(40 << 10) // several pieces, which have to be gathered
				if err != nil {
					return
				}
				if _, err := s.(*Conn).Discard(len(p) / 2); err != nil {
					return
				}
			}
		})
		peeking.Go(func() {
			for {
				if _, err := c.Write(make([]byte, 10<<10)); err != nil {
					return
				}
			}
		})
		time.Sleep(100 * time.Microsecond)
		s.Close()
		hang.Start(t, peeking.Wait)()
		c.Close()
	}
}

func TestIdleCopyHoldsNoMemory(t *testing.T) {
	const streams = 50
	ln := overSoft.listen(t)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // pools keep what they have for a round
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var clients, servers []net.Conn
	var copies sync.WaitGroup
	proxied := make([][2]net.Conn, streams)
	for i := range proxied {
		client, in := overSoft.connect(t, ln)
		out, server := overTCP.pair(t)
		clients, servers = append(clients, client), append(servers, server)
		proxied[i] = [2]net.Conn{in, out}
	}
	before := heap()
	for _, p := range proxied {
		copies.Go(func() { io.Copy(p[0], p[1]) })
		copies.Go(func() { io.Copy(p[1], p[0]) })
	}
	for i := range clients { // once to and fro
		for _, way := range [][2]net.Conn{{clients[i], servers[i]}, {servers[i], clients[i]}} {
			data := traffic.Bytes(uint64(i), 20<<10)
			sent := hang.Start(t, func() { way[0].Write(data) })
			got := make([]byte, len(data))
			_, err := io.ReadFull(way[1], got)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			sent()
		}
	}
	// The last ones may not have found out yet that nothing more comes.
	hang.Eventually(t, "an idle proxied connection has less than 16 KiB", func() bool { return (heap()-before)/streams < 16<<10 })
	for i := range clients {
		clients[i].Close()
		servers[i].Close()
	}
	hang.Start(t, copies.Wait)()
}

// prefixed is a socket of which something has been read before.
type prefixed struct {
	*net.TCPConn
	all io.Reader
}

func (p *prefixed) Read(b []byte) (int, error) { return p.all.Read(b) }

// What a type of another package reads need not be what its socket has.
func TestCopyReadsWhatWrapsASocketByItsOwnRead(t *testing.T) {
	c, s := overSoft.streams(t)
	a, b := overTCP.pair(t)
	_, err := a.Write([]byte("-and-after"))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	n, err := c.ReadFrom(&prefixed{b.(*net.TCPConn), io.MultiReader(strings.NewReader("before"), b)})
	require.NoError(t, err)
	require.EqualValues(t, 16, n)
	got := make([]byte, n)
	_, err = io.ReadFull(s, got)
	require.NoError(t, err)
	require.Equal(t, "before-and-after", string(got))
}

func TestCopyOfALimitedSocketTakesNoMore(t *testing.T) {
	c, s := overSoft.streams(t)
	a, b := overTCP.pair(t)
	_, err := a.Write([]byte("0123456789"))
	require.NoError(t, err)
	n, err := io.CopyN(c, b, 4)
	require.NoError(t, err)
	require.EqualValues(t, 4, n)
	rest := make([]byte, 6)
	_, err = io.ReadFull(b, rest)
	require.NoError(t, err)
	require.Equal(t, "456789", string(rest))
	b.SetReadDeadline(time.Now())
	_, err = c.ReadFrom(b)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	got := make([]byte, 4)
	_, err = io.ReadFull(s, got)
	require.NoError(t, err)
	require.Equal(t, "0123", string(got))
}

// A relay that never flushes works with package net: ReadFrom of a bufio.Writer sends at once what
// its Write would keep.
func TestCopyToABufferedWriterSendsWhatHasCome(t *testing.T) {
	for _, to := range []carrier{overTCP, overSoft} {
		for _, from := range allCarriers {
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				a, b := from.ends(t)
				c, d := to.ends(t)
				copying := hang.Start(t, func() { io.Copy(bufio.NewWriter(c), b) })
				require.NoError(t, d.SetReadDeadline(time.Now().Add(hang.Time)))
				for _, message := range []string{"first", "second"} {
					_, err := a.Write([]byte(message))
					require.NoError(t, err)
					got := make([]byte, len(message))
					_, err = io.ReadFull(d, got)
					require.NoError(t, err)
					require.Equal(t, message, string(got))
				}
				require.NoError(t, a.Close())
				copying()
			})
		}
	}
}
