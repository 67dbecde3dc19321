package rnet

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestReservedMemoryIsSent(t *testing.T) {
	leak.Check(t)
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		const total = 4 << 20
		await := hang.Start(t, func() {
			rnd := traffic.NewRand(1)
			for at := 0; at < total; {
				n := min(total-at, 1+rnd.IntN(MaxReserve))
				p, err := c.Reserve(n)
				if !assert.NoError(t, err) {
					return
				}
				assert.Len(t, p, n)
				used := 1 + rnd.IntN(n)
				traffic.Fill(p[:used], 1, at)
				if !assert.NoError(t, c.Commit(used)) {
					return
				}
				at += used
				if rnd.IntN(4) == 0 && at < total { // ordinary writes may come between
					q := make([]byte, min(total-at, 100))
					traffic.Fill(q, 1, at)
					_, err := c.Write(q)
					assert.NoError(t, err)
					at += len(q)
				}
			}
		})
		require.NoError(t, traffic.Read(s, traffic.NewRand(2), 1, total, 64<<10))
		await()
	})
}

func TestCommitOfMoreThanWasReservedFails(t *testing.T) {
	c, s := overSoft.streams(t)
	require.Error(t, c.Commit(1), "nothing was reserved")
	for _, n := range []int{-1, 0, MaxReserve + 1} {
		_, err := c.Reserve(n)
		require.Error(t, err, "%d bytes", n)
	}
	p, err := c.Reserve(10)
	require.NoError(t, err)
	require.Error(t, c.Commit(11))
	require.Error(t, c.Commit(-1))
	copy(p, "0123456789")
	require.NoError(t, c.Commit(5))
	require.Error(t, c.Commit(5), "it was committed already")
	buf := make([]byte, 5)
	_, err = io.ReadFull(s, buf)
	require.NoError(t, err)
	require.Equal(t, "01234", string(buf))
}

// An application that fills reserved memory does not know that the peer has
// died meanwhile.
func TestReservedMemoryOutlivesTheSession(t *testing.T) {
	leak.Check(t)
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		p, err := c.Reserve(MaxReserve)
		require.NoError(t, err)
		s.s.mux.Fail(io.ErrUnexpectedEOF)
		<-s.s.mux.Done() // ended by the engine
		<-c.s.mux.Done()
		copy(p, traffic.Bytes(1, MaxReserve))
		require.Error(t, c.Commit(MaxReserve))
		_, err = c.Reserve(10)
		require.Error(t, err)
		require.NoError(t, c.Close())
	})
}

func TestMemoryOfReserveIsFreedByClose(t *testing.T) {
	ln := overSoft.listen(t)
	keep, _ := overSoft.connect(t, ln) // so that the session lives on
	defer keep.Close()
	c, s := overSoft.connect(t, ln)
	before := verbs.PinnedBytes()
	for range 100 {
		c, s = overSoft.connect(t, ln)
		p, err := c.(*Conn).Reserve(100)
		require.NoError(t, err)
		copy(p, bytes.Repeat([]byte("x"), 100))
		require.NoError(t, c.(*Conn).Commit(100))
		_, err = io.ReadFull(s, make([]byte, 100))
		require.NoError(t, err)
		c.Close()
		s.Close()
	}
	hang.Eventually(t, "all is freed", func() bool {
		c, s = overSoft.connect(t, ln)
		_, err := c.(*Conn).Reserve(1) // frees what was sent meanwhile
		require.NoError(t, err)
		require.NoError(t, c.(*Conn).Commit(0))
		c.Close()
		s.Close()
		return verbs.PinnedBytes()-before < 8*MaxReserve
	})
}

func TestReserveAndCloseMayMeet(t *testing.T) {
	leak.Check(t)
	ln := overSoft.listen(t)
	for range 200 {
		c, s := overSoft.connect(t, ln)
		var reserving, closing sync.WaitGroup
		reserving.Go(func() {
			for {
				p, err := c.(*Conn).Reserve(64 << 10)
				if err != nil {
					assert.ErrorIs(t, err, net.ErrClosed)
					return
				}
				clear(p)
				if err := c.(*Conn).Commit(len(p)); err != nil {
					assert.ErrorIs(t, err, net.ErrClosed)
					return
				}
			}
		})
		go io.Copy(io.Discard, s)
		closing.Go(func() { c.Close() })
		hang.Start(t, reserving.Wait)()
		hang.Start(t, closing.Wait)()
		s.Close()
	}
}

// Another goroutine may close a connection while one fills what Reserve gave it,
// and the session may end then.
func TestReservedMemoryOutlivesAClose(t *testing.T) {
	leak.Check(t)
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		p, err := c.Reserve(MaxReserve)
		require.NoError(t, err)
		hang.Start(t, func() { c.Close() })()
		s.s.mux.Fail(io.ErrUnexpectedEOF)
		<-c.s.mux.Done() // ended by the engine
		copy(p, traffic.Bytes(1, MaxReserve))
		require.ErrorIs(t, c.Commit(MaxReserve), net.ErrClosed)
	})
}

func TestReservedMemoryOfAForgottenConnectionIsFreed(t *testing.T) {
	awaitNoSessions(t)
	before := verbs.PinnedBytes()
	func() {
		c, s := overSoft.forgettable(t)
		_, err := c.Reserve(1)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	}()
	hang.Eventually(t, "all is freed", func() bool {
		runtime.GC()
		return verbs.PinnedBytes() == before
	})
}

// forgettable returns the ends of a connection that the test does not keep.
func (k carrier) forgettable(t *testing.T) (dialed, accepted *Conn) {
	t.Helper()
	ln := k.listen(t)
	c, err := k.dialer().Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	return c.(*Conn), s.(*Conn)
}
