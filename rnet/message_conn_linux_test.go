package rnet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

func listenPackets(t testing.TB, lc *ListenConfig, address string) *Listener {
	t.Helper()
	return listenAt(t, lc, "unixpacket", address)
}

// messageConns makes a connection of messages through ln.
func messageConns(t testing.TB, ln *Listener) (dialed, accepted *MessageConn) {
	t.Helper()
	c, err := patient().Dial("unixpacket", ln.Addr().String())
	require.NoError(t, err)
	require.IsType(t, (*MessageConn)(nil), c, "%v", Explain(ln.Addr().String()))
	s, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c.(*MessageConn), s.(*MessageConn)
}

func TestMessageConnsPassNettest(t *testing.T) { passNettestAt(t, "unixpacket") }

func TestMessageConnsPassNettestBetweenProcesses(t *testing.T) {
	passNettestThroughAnother(t, "unixpacket")
}

func TestPlainPeersOfAPacketSocketAreServed(t *testing.T) {
	for kind, address := range unixAddresses(t) {
		t.Run(kind, func(t *testing.T) {
			ln := listenPackets(t, &ListenConfig{}, address)
			messageConns(t, ln)
			c, err := net.Dial("unixpacket", address)
			require.NoError(t, err)
			defer c.Close()
			s, err := ln.Accept()
			require.NoError(t, err)
			defer s.Close()
			require.IsType(t, (*net.UnixConn)(nil), s)
			exchange(t, c, s)
			require.EqualValues(t, 1, ln.readStats().TCP)

			_, want := net.Dial("unix", address) // stream sockets are others
			_, err = patient().Dial("unix", address)
			require.Equal(t, fmt.Sprint(want), fmt.Sprint(err))
			require.NoError(t, ln.Close())

			plain, err := net.Listen("unixpacket", address)
			require.NoError(t, err)
			defer plain.Close()
			c, err = patient().Dial("unixpacket", address)
			require.NoError(t, err)
			defer c.Close()
			require.IsType(t, (*net.UnixConn)(nil), c)
		})
	}
}

// Abstract names of the two kinds of sockets are not the same.
func TestPacketAndStreamSocketsOfOneNameAreApart(t *testing.T) {
	name := unixAddresses(t)["abstract"]
	stream, packets := listenUnix(t, name), listenPackets(t, &ListenConfig{}, name)
	for range 2 {
		c, s := messageConns(t, packets)
		exchange(t, c, s)
		d, e := unixStreams(t, stream)
		exchange(t, d, e)
	}
}

// Messages of several writers are whole, and each of them comes once.
func TestMessagesOfSeveralWritersAreWhole(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	c, s := messageConns(t, ln)
	const writers = 4
	each := times(50, 500)
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			rnd := traffic.NewRand(uint64(w))
			for i := range each {
				size := 8 + rnd.IntN(1<<rnd.IntN(18))
				message := traffic.Bytes(uint64(w)<<32|uint64(i), size)
				binary.LittleEndian.PutUint64(message, uint64(w)<<32|uint64(i))
				_, err := c.Write(message)
				assert.NoError(t, err)
			}
		})
	}
	var next [writers]uint64
	buf := make([]byte, 300_000)
	for range writers * each {
		n, err := s.Read(buf)
		require.NoError(t, err)
		id := binary.LittleEndian.Uint64(buf)
		w := id >> 32
		require.Less(t, w, uint64(writers))
		require.Equal(t, next[w], id&(1<<32-1), "writer %d", w)
		next[w]++
		want := traffic.Bytes(id, n)
		require.True(t, bytes.Equal(want[8:], buf[8:n]))
	}
	work.Wait()
}

// A Write whose deadline passes when the message has gone in part has sent nothing.
func TestAMessageThatADeadlineTearsIsNotReceived(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	for range times(3, 30) {
		c, s := messageConns(t, ln)
		sent := 0
		for c.torn == nil { // until the window is used up
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
			n, err := c.Write(bytes.Repeat([]byte{byte(sent)}, 100_001))
			if err == nil {
				sent++
				continue
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Zero(t, n)
		}
		_, err := c.Write([]byte("again")) // while nobody reads
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotNil(t, c.torn)
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		await := hang.Start(t, func() {
			_, err := c.Write([]byte("next"))
			assert.NoError(t, err)
			assert.NoError(t, c.CloseWrite())
		})
		buf := make([]byte, 200_000)
		for i := range sent {
			n, err := s.Read(buf)
			require.NoError(t, err)
			require.True(t, bytes.Equal(buf[:n], bytes.Repeat([]byte{byte(i)}, 100_001)))
		}
		n, err := s.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "next", string(buf[:n]))
		await()
		_, err = s.Read(buf)
		require.Equal(t, io.EOF, err)
	}
}

// The end in a message that is torn is the end after the one before.
func TestAMessageThatIsTornBeforeTheEndIsNotReceived(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	c, s := messageConns(t, ln)
	_, err := c.conn.Write(frameOf([]byte("whole"), wholeMessage))
	require.NoError(t, err)
	_, err = c.conn.Write(frameOf([]byte("torn"), wholeMessage)[:7])
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	buf := make([]byte, 10)
	n, err := s.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "whole", string(buf[:n]))
	for range 2 {
		_, err = s.Read(buf)
		require.Equal(t, io.EOF, err)
	}
	_, err = s.Write([]byte("answer"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	n, err = c.Read(buf)
	require.NoError(t, err, "a reset would say that something was not read")
	require.Equal(t, "answer", string(buf[:n]))
}

// frameOf is a message as it goes over a stream.
func frameOf(message []byte, mark byte) []byte {
	frame := binary.LittleEndian.AppendUint32(nil, uint32(len(message)))
	return append(append(frame, message...), mark)
}

// A deadline that passes in the middle of a message leaves the reader able to go on.
func TestAReadDeadlineLosesNothingOfAMessage(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	c, s := messageConns(t, ln)
	buf := make([]byte, 100)
	for i := range 3 {
		message := fmt.Sprintf("message %d", i)
		for _, b := range frameOf([]byte(message), wholeMessage) {
			require.NoError(t, s.SetReadDeadline(time.Now().Add(time.Millisecond)))
			_, err := s.Read(buf)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			_, err = c.conn.Write([]byte{b})
			require.NoError(t, err)
		}
		require.NoError(t, s.SetReadDeadline(time.Time{}))
		n, err := s.Read(buf)
		require.NoError(t, err)
		require.Equal(t, message, string(buf[:n]))
	}
}

// What a peer says of a message is not believed, nor does it take memory.
func TestAMessageThatLiesIsRefused(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	for name, lie := range map[string][]byte{
		"length":         {0, 0, 0x10, 0},
		"largest length": {0xff, 0xff, 0xff, 0xff},
		"mark":           frameOf([]byte("x"), 2),
	} {
		t.Run(name, func(t *testing.T) {
			c, s := messageConns(t, ln)
			_, err := c.conn.Write(append(frameOf([]byte("before"), wholeMessage), lie...))
			require.NoError(t, err)
			buf := make([]byte, 10)
			n, err := s.Read(buf)
			require.NoError(t, err)
			require.Equal(t, "before", string(buf[:n]))
			for range 2 { // nothing can be received any more
				_, err = s.Read(buf)
				require.ErrorIs(t, err, mux.ErrProtocol)
			}
		})
	}
	c, s := messageConns(t, ln)
	_, err := c.conn.Write(append(binary.LittleEndian.AppendUint32(nil, maxMessage), make([]byte, 10)...))
	require.NoError(t, err)
	for s.in == nil {
		require.NoError(t, s.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		_, err = s.Read(make([]byte, 10))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.LessOrEqual(t, cap(s.in.Unread()), 4<<10)
}

// Messages that are not whole do not use up what all connections of a session may hold
// together: then none of them would ever be whole.
func TestPartsOfManyMessagesDoNotStopEachOther(t *testing.T) {
	limits := Limits{SessionWindow: mux.MinSessionWindow}
	ln := listenPackets(t, &ListenConfig{Limits: limits}, unixPath(t))
	const conns, size = 32, 200_000
	require.Greater(t, conns*size, 2*limits.SessionWindow)
	var work sync.WaitGroup
	halves := make(chan struct{})
	var begun sync.WaitGroup
	begun.Add(conns)
	for range conns {
		c, s := messageConns(t, ln)
		work.Go(func() {
			frame := frameOf(make([]byte, size), wholeMessage)
			_, err := c.conn.Write(frame[:size/2])
			assert.NoError(t, err)
			begun.Done()
			<-halves
			_, err = c.conn.Write(frame[size/2:])
			assert.NoError(t, err)
		})
		work.Go(func() {
			n, err := s.Read(make([]byte, size))
			assert.NoError(t, err)
			assert.Equal(t, size, n)
		})
	}
	hang.Start(t, begun.Wait)()
	close(halves)
	hang.Start(t, work.Wait)()
}

func TestMessagesAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector sync.Pool drops things at random, which are allocated anew")
	}
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	c, s := messageConns(t, ln)
	for _, size := range []int{0, 64, 5000, 150_000} {
		p, buf := make([]byte, size), make([]byte, 200_000)
		n := testing.AllocsPerRun(200, func() {
			if _, err := c.Write(p); err != nil {
				t.Error(err)
			}
			if n, err := s.Read(buf); n != size || err != nil && err != io.EOF {
				t.Error(n, err)
			}
		})
		if n >= 1 {
			t.Errorf("%v allocations for a message of %d bytes", n, size)
		}
	}
}

// A message that nobody has read makes a Close a reset, also if it was taken off the stream.
func TestAMessageLeftUnreadResets(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	c, s := messageConns(t, ln)
	_, err := c.conn.Write(append(frameOf([]byte("a"), wholeMessage), frameOf([]byte("b"), wholeMessage)...))
	require.NoError(t, err)
	_, err = s.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NotNil(t, s.in)
	require.NoError(t, s.Close())
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// So does one that a Read takes off the stream beside the Close, with the one that it returns.
func TestACloseBesideAReadOfMessagesDoesNotSayThatAllWereRead(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	c, s := messageConns(t, ln)
	_, err := c.conn.Write(append(frameOf([]byte("a"), wholeMessage), frameOf([]byte("b"), wholeMessage)...))
	require.NoError(t, err)
	s.readMu.Lock() // as a Read
	k, err := s.conn.st.Next()
	require.NoError(t, err)
	await := hang.Start(t, func() { assert.NoError(t, s.Close()) })
	hang.Eventually(t, "the Close has begun", s.conn.st.Closed)
	s.arrived(k)
	s.skip(len("a") + messageOverhead)
	s.readMu.Unlock()
	await()
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// A longer message goes if the write buffer is larger, as over a socket.
func TestTheWriteBufferLimitsMessages(t *testing.T) {
	ln := listenPackets(t, &ListenConfig{}, unixPath(t))
	c, s := messageConns(t, ln)
	plain, err := net.Dial("unixpacket", ln.Addr().String())
	require.NoError(t, err)
	defer plain.Close()
	for _, buffer := range []int{0, 1, 5000, 100_000, 1 << 28} {
		require.NoError(t, c.SetWriteBuffer(buffer))
		require.NoError(t, plain.(*net.UnixConn).SetWriteBuffer(buffer))
		var sndbuf int
		require.NoError(t, rawOf(t, plain.(syscall.Conn)).Control(func(fd uintptr) {
			sndbuf, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
		}))
		require.NoError(t, err)
		limit := min(sndbuf-32, maxMessage)
		_, err = c.Write(make([]byte, limit+1))
		require.ErrorIs(t, err, syscall.EMSGSIZE)
		await := hang.Start(t, func() {
			_, err := c.Write(make([]byte, limit))
			assert.NoError(t, err)
		})
		n, err := s.Read(make([]byte, limit+1))
		require.NoError(t, err)
		require.Equal(t, limit, n)
		await()
	}
}

// Whatever a peer sends, and however it is cut, is read as the same messages or refused.
func TestMessagesAreReadHoweverTheyAreCut(t *testing.T) {
	messages := func(sent []byte, cut func() int) (list []string, refused bool) {
		var c MessageConn
		for rest := sent; len(rest) > 0; {
			n := min(cut(), len(rest))
			c.arrived(chunkOf(rest[:n]))
			rest = rest[n:]
			for {
				message, mark, missing, err := c.first()
				if err != nil {
					return list, true
				}
				if missing > 0 {
					require.LessOrEqual(t, missing, maxMessage+messageOverhead)
					break
				}
				list = append(list, fmt.Sprint(mark, message))
				c.skip(len(message) + messageOverhead)
			}
		}
		return list, false
	}
	for seed := range uint64(orRaced(times(2000, 200_000), 200)) { // in one goroutine
		rnd := traffic.NewRand(seed)
		var sent []byte
		for range rnd.IntN(5) {
			sent = append(sent, frameOf(traffic.Bytes(rnd.Uint64(), rnd.IntN(1+rnd.IntN(3000))), byte(rnd.IntN(2)))...)
		}
		if len(sent) > 0 && rnd.IntN(2) == 0 {
			sent[rnd.IntN(len(sent))] ^= 1 << rnd.IntN(8)
		}
		want, refused := messages(sent, func() int { return 1 << 20 })
		most := 1 + rnd.IntN(1000)
		got, alsoRefused := messages(sent, func() int { return 1 + rnd.IntN(most) })
		require.Equal(t, want, got, "seed %d", seed)
		require.Equal(t, refused, alsoRefused, "seed %d", seed)
	}
}

func chunkOf(p []byte) *mux.Chunk {
	k := mux.NewChunk(len(p))
	k.SetLen(len(p))
	copy(k.Unread(), p)
	return k
}
