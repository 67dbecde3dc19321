package rnet

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// smallSession is a carrier whose sessions may hold little.
var smallSession = carrier{name: "soft-small-session", transport: Soft, limits: Limits{SessionWindow: minSessionWindow}}

// unread returns the bytes that the session holds.
func (m *mux) unread() (bytes int) {
	for _, c := range m.streams.list() {
		c.recv.mu.Lock()
		bytes += c.recv.flow.Buffered()
		c.recv.mu.Unlock()
	}
	return bytes
}

func TestStreamsThatNobodyReadsHoldNoMoreThanTheSessionWindow(t *testing.T) {
	const streams = 50
	ln := smallSession.listen(t)
	var held *mux
	for range streams {
		c, s := smallSession.connect(t, ln)
		go c.Write(make([]byte, defaultWindow)) // ends with the test
		held = s.(*Conn).s.mux
	}
	// All that may come has come when each stream has its minimum.
	eventually(t, "the writers stand still", func() bool {
		for _, c := range held.streams.list() {
			c.recv.mu.Lock()
			few := c.recv.flow.Buffered() < streamMinimum
			c.recv.mu.Unlock()
			if few {
				return false
			}
		}
		return true
	})
	require.LessOrEqual(t, held.unread(), minSessionWindow+streams*streamMinimum)

	// A stream that is read goes on beside them, both ways, and so does one that
	// is opened now.
	for range 2 {
		c, s := smallSession.connect(t, ln)
		require.Same(t, held, s.(*Conn).s.mux)
		const size = 1 << 20
		for i, ends := range [][2]net.Conn{{c, s}, {s, c}} {
			sent := start(t, func() { assert.NoError(t, writePattern(ends[0], newRand(1), uint64(i), size, 64<<10)) })
			require.NoError(t, readPattern(ends[1], newRand(2), uint64(i), size, 64<<10))
			sent()
		}
	}
	require.LessOrEqual(t, held.unread(), minSessionWindow+(streams+2)*streamMinimum)
}

// Whoever takes from the session window gives it back, however its streams end.
func TestSessionWindowIsGivenBack(t *testing.T) {
	leavesNothing(t)
	ends := map[string]func(c, s *Conn){
		"read":      func(c, s *Conn) { io.ReadFull(s, make([]byte, 20<<10)) },
		"peeked":    func(c, s *Conn) { s.Peek(20 << 10); s.Discard(20 << 10) },
		"copied":    func(c, s *Conn) { s.WriteTo(io.Discard) },
		"read side": func(c, s *Conn) { s.CloseRead() },
		"closed":    func(c, s *Conn) { s.Close() },
		"reset":     func(c, s *Conn) { s.SetLinger(0); s.Close() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			ln := smallSession.listen(t)
			keep, kept := smallSession.connect(t, ln)
			for range 20 { // many times the session window
				c, s := smallSession.connect(t, ln)
				sent := start(t, func() {
					c.Write(make([]byte, 20<<10))
					c.(*Conn).CloseWrite()
				})
				end(c.(*Conn), s.(*Conn))
				sent()
				c.Close()
				s.Close()
			}
			sent := start(t, func() { assert.NoError(t, writePattern(keep, newRand(1), 1, 1<<20, 64<<10)) })
			require.NoError(t, readPattern(kept, newRand(2), 1, 1<<20, 64<<10))
			sent()
			s := kept.(*Conn).s.mux
			var counted, freed uint64
			eventually(t, "nobody polls", func() bool {
				return s.pollLock.Do(func() { counted, freed = s.counted, s.freed.Load()+s.freedAtOnce })
			})
			require.Equal(t, counted, freed)
		})
	}
}
