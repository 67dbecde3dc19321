package rgnet

import (
	"bytes"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/buffer/elastic"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// A connection that ends while its handler looks at what Peek gave, because a Write fails for one,
// does not give that memory to another connection before the handler returns.
func TestWhatPeekGivesStaysWhenTheConnectionEnds(t *testing.T) {
	for _, k := range streamCarriers {
		t.Run(k.name, func(t *testing.T) {
			data := noise(1000)
			seen := make(chan []byte, 1)
			s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
				if c.InboundBuffered() < len(data) {
					c.Write([]byte{1}) // what there is stays in the connection
					return gnet.None
				}
				p, err := c.Peek(len(data))
				if err != nil {
					t.Error(err)
				}
				c.(*conn).close(nil) // as a Write that fails
				for range 100 {
					var other elastic.RingBuffer // of another connection
					other.Write(bytes.Repeat([]byte("secret"), 100))
				}
				seen <- bytes.Clone(p)
				return gnet.None
			}})
			c := k.dial(t, s.address)
			_, err := c.Write(data[:500])
			require.NoError(t, err)
			_, err = c.Read(make([]byte, 1))
			require.NoError(t, err)
			_, err = c.Write(data[500:])
			require.NoError(t, err)
			require.Equal(t, data, hang.Receive(t, seen, "the handler is done"))
		})
	}
}
