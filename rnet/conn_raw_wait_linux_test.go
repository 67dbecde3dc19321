package rnet

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// A write deadline that passes while what a function has written is sent does not
// tear a hole into the stream.
func TestADeadlineLosesNothingThatWasWrittenByDescriptor(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		n := fillWindow(t, c, s)
		data := traffic.Bytes(7, 20_000)
		written := 0
		err := rawOf(t, c).Write(func(fd uintptr) bool {
			m, err := unix.Write(int(fd), data)
			require.NoError(t, err)
			written = m
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
			return true
		})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, len(data), written)
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		_, err = io.CopyN(io.Discard, s, int64(n))
		require.NoError(t, err)
		var got []byte
		await := hang.Start(t, func() { got, _ = io.ReadAll(s) })
		require.NoError(t, rawOf(t, c).Write(func(fd uintptr) bool {
			_, err := unix.Write(int(fd), []byte("."))
			require.NoError(t, err)
			return true
		}))
		require.NoError(t, c.CloseWrite())
		await()
		require.True(t, bytes.Equal(append(data, '.'), got))
	})
}

// fillWindow uses up what s lets c send, and returns how much that was.
func fillWindow(t *testing.T, c, s *Conn) int {
	t.Helper()
	n := int(s.s.mux.Config().Window)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(hang.Time)))
	_, err := c.Write(make([]byte, n))
	require.NoError(t, err)
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	return n
}

// A function that leaves what there is, and wants more, is told of the end.
func TestAReadByDescriptorThatIsNotContentAtTheEndDoesNotSpin(t *testing.T) {
	c, s := overSoft.streams(t)
	_, err := s.Write([]byte("one"))
	require.NoError(t, err)
	require.NoError(t, s.CloseWrite())
	calls := 0
	require.NoError(t, c.SetReadDeadline(time.Now().Add(hang.Time)))
	await := hang.Start(t, func() {
		err = rawOf(t, c).Read(func(fd uintptr) bool { calls++; return false })
	})
	await()
	require.ErrorIs(t, err, io.EOF)
	require.Less(t, calls, 5)
}

// Who waits for room by descriptor does not keep others from writing.
func TestAWriteGoesOnWhileAnotherWaitsByDescriptor(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		begun := make(chan struct{}, 1)
		waits := hang.Start(t, func() {
			first := true
			rawOf(t, c).Write(func(uintptr) bool {
				if first {
					first = false
					begun <- struct{}{}
					return false // until there is more room than now
				}
				return true
			})
		})
		<-begun
		time.Sleep(20 * time.Millisecond)
		read := hang.Start(t, func() { io.Copy(io.Discard, s) })
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(hang.Time)))
		_, err := c.Write(make([]byte, 4<<20))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		waits()
		read()
	})
}

// What a function has written in a Read waits for the peer without keeping others from reading.
func TestAReadByDescriptorThatWritesHoldsUpNoReader(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, s := k.streams(t)
		n, much := fillWindow(t, c, s), make([]byte, 4<<20)
		_, err := s.Write([]byte("x"))
		require.NoError(t, err)
		wrote := make(chan struct{})
		asks := hang.Start(t, func() {
			rawOf(t, c).Read(func(fd uintptr) bool {
				var b [1]byte
				if n, _ := unix.Read(int(fd), b[:]); n != 1 {
					return false
				}
				unix.Write(int(fd), make([]byte, 1000))
				close(wrote)
				return true
			})
		})
		<-wrote
		time.Sleep(10 * time.Millisecond)
		peer := hang.Start(t, func() { // reads when it has written
			s.SetWriteDeadline(time.Now().Add(hang.Time))
			if _, err := s.Write(much); err != nil {
				t.Error(err)
			}
			io.CopyN(io.Discard, s, int64(n+1000))
		})
		reader := hang.Start(t, func() { io.CopyN(io.Discard, c, int64(len(much))) })
		peer()
		if t.Failed() {
			c.Close()
		}
		reader()
		asks()
	})
}

// A function that writes, and wants more than there is, is called again when there is more.
func TestAReadByDescriptorThatWritesWaitsForMore(t *testing.T) {
	c, s := overSoft.streams(t)
	calls := 0
	await := hang.Start(t, func() {
		err := rawOf(t, c).Read(func(fd uintptr) bool {
			calls++
			_, err := unix.Write(int(fd), []byte("?"))
			assert.NoError(t, err)
			n, _ := unix.Read(int(fd), make([]byte, 1))
			return n == 1
		})
		assert.NoError(t, err)
	})
	_, err := io.ReadFull(s, make([]byte, 1))
	require.NoError(t, err)
	time.Sleep(20 * time.Millisecond)
	_, err = s.Write([]byte("x"))
	require.NoError(t, err)
	await()
	require.Equal(t, 2, calls)
}

func TestErrorsByDescriptorNameTheCallThatFailed(t *testing.T) {
	c, s := overSoft.streams(t)
	require.NoError(t, c.CloseWrite())
	never := func(uintptr) bool { return false }
	require.ErrorContains(t, rawOf(t, c).Write(never), ": write: broken pipe")
	require.NoError(t, s.SetLinger(0))
	require.NoError(t, s.Close())
	require.ErrorContains(t, rawOf(t, c).Read(never), ": read: connection reset by peer")
}
