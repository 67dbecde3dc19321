package rgnet

import (
	"bytes"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/buffer/elastic"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// afterRest runs f in the second OnTraffic of a connection, of which the first has left "abcd".
func afterRest(t *testing.T, f func(c gnet.Conn)) {
	done := make(chan struct{})
	s := soft.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
		switch c.InboundBuffered() {
		case 4:
			c.Write([]byte{1})
		case 10:
			f(c)
			close(done)
		}
		return gnet.None
	}})
	c := soft.dial(t, s.address)
	_, err := c.Write([]byte("abcd"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err)
	_, err = c.Write([]byte("efghij"))
	require.NoError(t, err)
	hang.Receive(t, done, "the handler is done")
}

// What Peek gives is the handler's until it returns, also where the connection is closed meanwhile.
func TestWhatPeekGivesStaysWhenTheConnectionIsClosed(t *testing.T) {
	var seen []byte
	afterRest(t, func(c gnet.Conn) {
		p, _ := c.Peek(-1)
		c.EventLoop().Close(c)
		var other elastic.RingBuffer // of another connection
		other.Write(bytes.Repeat([]byte("X"), 10))
		seen = bytes.Clone(p)
	})
	require.Equal(t, "abcdefghij", string(seen))
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A connection that is closed while WriteTo goes on does not take what another has received.
func TestACloseDuringWriteToLeavesOthersAlone(t *testing.T) {
	var other elastic.RingBuffer // of another connection
	afterRest(t, func(c gnet.Conn) {
		c.WriteTo(writerFunc(func(p []byte) (int, error) {
			c.EventLoop().Close(c) // the other side of a proxy has failed
			if other.IsEmpty() {
				other.Write([]byte("another's"))
			}
			return len(p), nil
		}))
	})
	require.Equal(t, len("another's"), other.Buffered())
}
