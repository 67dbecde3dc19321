package traffic

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What the other end does with a connection is told by its first byte.
const (
	Silent = 's' // neither reads nor writes
	Source = 'w' // writes without end
	Sink   = 'r' // reads without end
	Echo   = 'e'
	Count  = 'c' // reads to the end, then writes a byte
	// Exchanging answers one Exchange after the other.
	Exchanging = 'x'
)

// AllModes are those in which an end waits for the other one.
const AllModes = string(Silent) + string(Source) + string(Sink) + string(Echo)

// Behave does with a connection what its mode says, until it ends.
func Behave(c net.Conn, mode byte) {
	switch mode {
	case Source:
		for buf := make([]byte, 100<<10); ; {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	case Sink:
		io.Copy(io.Discard, c)
	case Echo:
		for buf := make([]byte, 64<<10); ; {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	case Count:
		buf := make([]byte, 256<<10)
		for err := error(nil); err == nil; {
			_, err = c.Read(buf)
		}
		c.Write(buf[:1])
	case Exchanging:
		for AnswerExchange(c) == nil {
		}
	}
}

// Serve accepts connections and does with each what its first byte says,
// until the listener is closed. A silent one is never closed.
func Serve(ln net.Listener) error {
	for {
		c, err := ln.Accept() // ended by a peer, or Close
		if err != nil {
			return err
		}
		go func() {
			var mode [1]byte
			if _, err := io.ReadFull(c, mode[:]); err == nil && mode[0] != Silent {
				Behave(c, mode[0])
				c.Close()
			}
		}()
	}
}

// firstByteTime is how long ReadMode waits.
const firstByteTime = time.Minute

// ReadMode returns the mode that the peer tells by its first byte.
func ReadMode(t testing.TB, c net.Conn) byte {
	t.Helper()
	var mode [1]byte
	require.NoError(t, c.SetReadDeadline(time.Now().Add(firstByteTime)))
	defer c.SetReadDeadline(time.Time{})
	_, err := io.ReadFull(c, mode[:])
	require.NoError(t, err)
	return mode[0]
}

// RoundTrip sends something to an end that echoes, and waits until it is back.
func RoundTrip(c net.Conn) error {
	buf := []byte("there and back")
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf)
	return err
}
