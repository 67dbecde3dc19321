package rgnet

import (
	"io"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"
)

// echo sends back what it gets.
type echo struct {
	gnet.BuiltinEventEngine
}

func (*echo) OnTraffic(c gnet.Conn) gnet.Action {
	p, _ := c.Next(-1)
	c.Write(p)
	return gnet.None
}

func TestEchoOverOneConnection(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		s := k.serve(t, new(echo))
		c := k.dial(t, s.address)
		msg := []byte("the quick brown fox")
		for range 100 {
			_, err := c.Write(msg)
			require.NoError(t, err)
			got := make([]byte, len(msg))
			_, err = io.ReadFull(c, got)
			require.NoError(t, err)
			require.Equal(t, msg, got)
		}
	})
}
