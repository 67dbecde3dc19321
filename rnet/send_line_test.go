package rnet

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nobodyIsAwake fails t if a writer of the session was woken from the line and has not
// come back. There must be none that sends.
func nobodyIsAwake(t testing.TB, m *mux) {
	t.Helper()
	m.txMu.Lock()
	defer m.txMu.Unlock()
	require.Zero(t, m.awake)
	require.Zero(t, m.promised)
	require.True(t, m.txWait.empty())
}

// Writers leave the line in every way there is, also when they were woken: the
// others get through.
func TestWritersThatGiveUpLetTheOthersThrough(t *testing.T) {
	const streams, each = 120, 48 << 10
	ends := []func(c, s net.Conn){
		func(c, s net.Conn) { c.Close() },
		func(c, s net.Conn) { c.(*Conn).CloseWrite() },
		func(c, s net.Conn) { c.SetWriteDeadline(time.Now()) },
		func(c, s net.Conn) { s.(*Conn).SetLinger(0); s.Close() },
		func(c, s net.Conn) { s.Close() },
	}
	ln := overNarrow.listen(t)
	var work sync.WaitGroup
	var on *mux
	for i := range streams {
		c, s := overNarrow.connect(t, ln)
		on = c.(*Conn).s.mux
		seed := uint64(i)
		if i%2 == 0 {
			work.Go(func() { assert.NoError(t, writePattern(c, newRand(seed), seed, each, 8<<10)) })
			work.Go(func() { assert.NoError(t, readPattern(s, newRand(seed+1), seed, each, 8<<10)) })
			continue
		}
		work.Go(func() { // ended by one of ends
			assert.Error(t, writePattern(c, newRand(seed), seed, 1<<30, 8<<10))
			c.Close()
		})
		work.Go(func() { io.Copy(io.Discard, s) }) // ended by the end of the stream
		work.Go(func() {
			time.Sleep(time.Duration(newRand(seed).IntN(20_000)) * time.Microsecond)
			ends[i/2%len(ends)](c, s)
		})
	}
	start(t, work.Wait)()
	nobodyIsAwake(t, on)
}

// The same of the streams of a loop: of those that were woken some are closed,
// and some reset by the peer before the loop comes to them.
func TestStreamsThatCloseWhenWokenLetTheOthersThrough(t *testing.T) {
	const streams, messages, size = 300, 16, 256
	l, dialed := onHandLoop(t, overNarrow, streams)
	s := l.sinks[0].stream.(*loopStream).m
	byID := make(map[uint32]*Conn)
	for _, c := range dialed {
		byID[c.st.id] = c
	}
	const keeps, closes, isReset = 0, 1, 2
	fate := func(k *sink) int { return int(k.stream.(*loopStream).id) % 3 }

	message := make([]byte, size)
	left := make([]int, streams)
	for i, k := range l.sinks { // until nobody can send: all stand in line, or wait for their window
		left[i], k.writable = messages*size, 0
		for {
			n, err := k.stream.Write(message)
			require.NoError(t, err)
			left[i] -= n
			if n < size || left[i] <= 0 {
				break
			}
		}
	}
	s.txMu.Lock()
	require.False(t, s.txWait.empty(), "they have to wait")
	s.txMu.Unlock()

	var readers sync.WaitGroup
	for i, k := range l.sinks {
		c := byID[k.stream.(*loopStream).id]
		if fate(k) == keeps {
			readers.Go(func() { // ended by the bytes
				n, err := io.CopyN(io.Discard, c, int64(messages*size))
				assert.NoError(t, err, "stream %d after %d bytes", i, n)
			})
		}
	}
	gone := make([]bool, streams)
	l.until(t, "everything is sent", func() bool {
		all := true
		for i, k := range l.sinks {
			if k.writable > 0 && !gone[i] {
				switch fate(k) {
				case closes:
					k.stream.Close(i%2 == 0)
					gone[i] = true
				case isReset: // Ended closes it here
					c := byID[k.stream.(*loopStream).id]
					c.SetLinger(0)
					c.Close()
					gone[i] = true
				}
			}
			for !gone[i] && left[i] > 0 && k.writable > 0 && len(k.ended) == 0 {
				n, err := k.stream.Write(message[:min(size, left[i])])
				require.NoError(t, err)
				if left[i] -= n; n < size {
					k.writable = 0
				}
			}
			all = all && (fate(k) != keeps || left[i] <= 0)
		}
		return all
	})
	start(t, readers.Wait)()
	l.until(t, "the peers' resets are told", func() bool {
		for i, k := range l.sinks {
			if gone[i] && fate(k) == isReset && len(k.ended) == 0 {
				return false
			}
		}
		return true
	})
	for _, k := range l.sinks {
		k.stream.Close(true)
	}
	nobodyIsAwake(t, s)
}

// What streams send that had to wait goes as few messages, and all of it goes.
func TestStreamsThatHadToWaitShareMessages(t *testing.T) {
	const streams, messages, size = 1000, 8, 48
	l, dialed := onHandLoop(t, overNarrow, streams)
	s := l.sinks[0].stream.(*loopStream).m
	byID := make(map[uint32]int)
	for i, k := range l.sinks {
		byID[k.stream.(*loopStream).id] = i
	}
	written := make([]int, streams)
	l.goOn = func(k *sink) {
		id := k.stream.(*loopStream).id
		var p [size]byte
		for i := byID[id]; written[i] < messages*size; {
			piece := p[:size-written[i]%size]
			fillPattern(piece, uint64(id), written[i])
			n, err := k.stream.Write(piece)
			assert.NoError(t, err)
			written[i] += n
			if n < len(piece) {
				return // Writable comes again
			}
		}
	}
	before := s.link.Mark().Requests
	var readers sync.WaitGroup
	for _, c := range dialed {
		readers.Go(func() { // ended by the bytes
			assert.NoError(t, readPattern(c, newRand(1), uint64(c.st.id), messages*size, 4<<10))
		})
	}
	for _, k := range l.sinks {
		l.goOn(k)
	}
	l.until(t, "everything is sent", func() bool { return !slices.ContainsFunc(written, func(n int) bool { return n < messages*size }) })
	start(t, readers.Wait)()
	nobodyIsAwake(t, s)
	require.NotZero(t, s.stats.creditStalls.Load())
	require.Less(t, s.link.Mark().Requests-before, uint64(streams*messages*3/4))
	t.Logf("%d frames in %d messages, of %d writes that waited", streams*messages, s.link.Mark().Requests-before, s.stats.creditStalls.Load())
}
