package rgnet

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/buffer/elastic"
	"github.com/stretchr/testify/require"
)

// A reader that has nothing adds nothing to what is sent, least of all what the memory held before.
func TestReadFromOfNothingSendsNothing(t *testing.T) {
	s := soft.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
		c.Discard(-1)
		old := elastic.RingBuffer{} // of another connection
		old.Write(bytes.Repeat([]byte("secret"), 100))
		old.Done()
		n, err := c.ReadFrom(strings.NewReader(""))
		if n != 0 || err != nil {
			t.Error(n, err)
		}
		c.Write([]byte("end"))
		return gnet.Close
	}})
	c := soft.dial(t, s.address)
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "end", string(got))
}

// ReadFrom takes what its reader gives behind what waits, in whatever pieces it comes.
func TestReadFromKeepsTheOrder(t *testing.T) {
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"half": iotest.HalfReader, "one byte": iotest.OneByteReader, "data and error": iotest.DataErrReader,
	} {
		c := &conn{l: &eventLoop{}, state: connOpen, blocked: true}
		before, data := noise(3000), noise(2*outPiece)
		c.out.Write(before)
		c.out.discard(1000) // was sent
		n, err := c.ReadFrom(wrap(bytes.NewReader(data)))
		require.NoError(t, err)
		require.EqualValues(t, len(data), n)
		require.Equal(t, len(before)-1000+len(data), c.OutboundBuffered())
		var got []byte
		for c.out.size > 0 {
			p := c.out.first()
			p = p[:min(len(p), 5000)]
			got = append(got, p...)
			c.out.discard(len(p))
		}
		require.True(t, bytes.Equal(append(before[1000:], data...), got), name)
	}
}
